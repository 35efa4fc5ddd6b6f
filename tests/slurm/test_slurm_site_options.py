"""What a site may ask for, through the real Slurm: options of srun, a second GRES, its own signal, arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SLOW, SLOWLY, TWO_BY_ONE, SlurmRun, launch, submit

from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]
LATER = ("--sbatch-arg", "begin=now+1hour")


def greeting(folder: Path) -> Path:
    script = folder / "hello.py"
    script.write_text("import os\nprint('hello', os.environ.get('GREETING'), flush=True)\n")
    return script


@pytest.mark.proves("Options of srun reach the real srun as they were given (`--srun-arg`)")
@pytest.mark.slow
def test_options_of_srun_reach_it_exact(slurm: SlurmCluster, tmp_path: Path) -> None:
    odd = tmp_path / "it's $HOME; a prolog.sh"
    odd.write_text("#!/bin/bash\necho export GREETING=from-the-prolog\n")
    odd.chmod(0o755)
    words = ("--srun-arg", f"task-prolog={odd}", "--srun-arg", "exclusive", "--srun-arg", "mpi=pmi2")
    done = launch(tmp_path, "asked", *TWO_BY_ONE, *words, greeting(tmp_path))
    assert done.code == 0, done
    assert "hello from-the-prolog" in done.stdout
    refused = launch(tmp_path, "wrong", *TWO_BY_ONE, "--srun-arg", "no-such-option=1", greeting(tmp_path))
    assert refused.code != 0, refused
    assert "unrecognized option" in refused.stdout + refused.stderr, refused


@pytest.mark.parametrize("request_by", ["gres", "gpus-per-node"])
def test_a_second_gres_is_held_beside_the_gpus(slurm: SlurmCluster, tmp_path: Path, request_by: str) -> None:
    shape = ("--device", "cuda", "--nodes", "2", "--gpus-per-node", "3", "--gpu-request", request_by)
    run = submit(slurm, tmp_path, "held", *shape, "--sbatch-arg", "gres=nvme:1", *LATER, greeting(tmp_path))
    held = run.job["TresPerNode"]
    assert "gpu:3" in held, run.job
    assert "nvme:1" in held, run.job
    too_many = launch(tmp_path, "wrong", *shape, "--sbatch-arg", "gres=nvme:9", greeting(tmp_path))
    assert too_many.code == 69, too_many


@pytest.mark.proves("Nodes of unlike GPUs are refused before any rank starts, with their counts")
def test_nodes_with_unlike_counts_of_gpus_are_refused(slurm: SlurmCluster, tmp_path: Path) -> None:
    shape = ("--device", "cuda", "--nodes", "2", "--gpus-per-node", "2", "--run-id", "unlike-1")
    text = launch(tmp_path, "unlike", *shape, "--dry-run", greeting(tmp_path)).stdout
    assert "#SBATCH --gpus-per-node=2\n" in text
    # By hand, as a site's whole nodes may be: three GPUs over two nodes.
    script = tmp_path / "mine.sbatch"
    script.write_text(text.replace("#SBATCH --gpus-per-node=2\n", "#SBATCH --gpus=3\n"))
    run = SlurmRun(slurm, RunDir(tmp_path / "runs" / "unlike"))
    run.run.logs.mkdir(parents=True)
    job = slurm.wait_for(slurm.sbatch(script), ("FAILED", "COMPLETED"), within_s=60)
    assert job["ExitCode"] == "78:0", run.console()
    first, second = slurm.names[:2]
    said = run.console()
    assert f"{first} has 2, {second} has 1" in said or f"{first} has 1, {second} has 2" in said, said
    assert run.events("attempt_started") == []


@pytest.mark.proof
@pytest.mark.proves("A site's own signal (`--sbatch-arg signal=B:USR1@300`) saves, requeues and ends alike")
@pytest.mark.slow
def test_a_signal_to_the_batch_script_saves_and_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    words = ("--sbatch-arg", "signal=B:USR1@300", "--time", "60", *SLOWLY, SLOW, "trainer.steps=60")
    run = submit(slurm, tmp_path, "signalled", *TWO_BY_ONE, *words)
    run.wait_for_step(10)
    slurm.run("scancel", "--batch", "--signal=USR1", str(run.job_id))
    run.wait_for(lambda: bool(run.events("preempted")), "the notice")
    run.wait_done()
    assert run.job["Restarts"] == "1"
    [saved] = [event["step"] for event in run.events("preempted")]
    assert run.resume_steps() == [None, saved]


def test_an_array_is_refused_before_the_queue_and_says_where_one_runs(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    refused = launch(tmp_path, "array", *TWO_BY_ONE, "--sbatch-arg", "array=0-3", greeting(tmp_path))
    assert refused.code in (2, 78), refused
    assert "dist-train launch --launcher local" in refused.stderr
    assert not (tmp_path / "runs").exists()
    text = launch(tmp_path, "array", *TWO_BY_ONE, "--dry-run", greeting(tmp_path)).stdout
    script = tmp_path / "mine.sbatch"
    script.write_text(text)
    run = RunDir(tmp_path / "runs" / "array")
    run.logs.mkdir(parents=True)
    job = slurm.wait_for(slurm.sbatch(script, "--array=0"), ("FAILED", "COMPLETED"), within_s=60)
    assert job["ExitCode"] == "78:0"
    assert [path.name for path in run.path.iterdir()] == ["logs"], "the run is not touched"


@pytest.mark.proof
@pytest.mark.proves("Elements of a job array that launch locally are runs of their own")
@pytest.mark.slow
def test_each_element_of_an_array_of_local_runs_is_a_run_of_its_own(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    command = f"{sys.executable} -P -m dist_train.cli.main launch --launcher local --device cpu"
    script = tmp_path / "array.sh"
    name = "--name sweep-$SLURM_ARRAY_TASK_ID"
    script.write_text(f"#!/bin/bash\n{command} --gpus-per-node 1 {name} {greeting(tmp_path)}\n")
    words = ["sbatch", "--parsable", "--array=0-2", f"--output={tmp_path}/%a.out", str(script)]
    said = subprocess.run(
        words, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
    for number in range(3):
        done = slurm.run("scontrol", "show", "job", "-o", f"{said}_{number}")
        assert "ArrayTaskId" in done.stdout
    slurm.wait_for(int(said), lambda job: not slurm.run("squeue", "-h").stdout.strip(), within_s=120)
    texts = [(tmp_path / f"{number}.out").read_text() for number in range(3)]
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/job.json")]
    assert len({record["spec"]["run_id"] for record in records}) == 3, texts
    assert all("hello" in text for text in texts), texts
