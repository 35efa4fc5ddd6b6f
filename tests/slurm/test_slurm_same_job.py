"""The same job on Slurm: the local run's bits, the plan's bytes, exit codes, and no secret in a record."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SLOW, TWO_BY_TWO, SlurmRun, following, launch, submit
from slurm_warm_tasks import COLD_TASKS
from warm_commands.warm_launch import cluster_cli

from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]
REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "examples" / "digits.yaml"
ONE_BY_ONE = ("--device", "cpu", "--nodes", "1", "--gpus-per-node", "1")
CANARY = "canary-4f1c07d2-in-no-file"


@pytest.mark.proves(
    "2 nodes x 2 ranks on Slurm end with the bits of the local run",
)
@pytest.mark.slow
def test_two_nodes_train_the_digits_to_the_local_runs_bits(slurm: SlurmCluster, tmp_path: Path) -> None:
    short = (*TWO_BY_TWO, DIGITS, "trainer.epochs=3")
    here = launch(tmp_path, "here", *short, launcher="local")
    there = launch(tmp_path, "there", *short)
    assert here.code == 0, here
    assert there.code == 0, there
    local, remote = (SlurmRun(slurm, RunDir(tmp_path / "runs" / name)) for name in ("here", "there"))
    assert remote.hashes == local.hashes
    (started,) = remote.events("attempt_started")
    assert [node["SLURM_NODEID"] for node in started["nodes"]] == ["0", "1"]
    assert len({node["SLURMD_NODENAME"] for node in started["nodes"]}) == 2
    assert "evaluation after epoch 3/3" in there.stdout, "launch shows what rank 0 prints"
    # What was submitted is what lies in plan/, and what Slurm holds.
    assert slurm.batch_script(remote.job_id) == (remote.run.plan / "job.sbatch").read_bytes()
    status = cluster_cli(["status", "there", "--exit-code"], cwd=tmp_path)
    assert status.code == 0, status
    assert "scontrol" in status.stdout, "who answered"


@pytest.mark.proves(
    "What `--dry-run` prints is what Slurm holds, byte for byte",
)
def test_what_the_dry_run_prints_is_what_slurm_gets(slurm: SlurmCluster, tmp_path: Path) -> None:
    words = (
        "--run-id",
        "digits-4711",
        "--time",
        "10",
        *TWO_BY_TWO,
        "--mem",
        "100",
        "--sbatch-arg",
        "comment=hi",
    )
    shown = launch(tmp_path, "digits", *words, "--dry-run", DIGITS)
    assert shown.code == 0, shown
    assert not (tmp_path / "runs").exists(), "a dry run makes nothing"
    held = submit(slurm, tmp_path, "digits", *words, "--sbatch-arg", "begin=now+1hour", DIGITS)
    script = slurm.batch_script(held.job_id).decode()
    assert script == shown.stdout.replace(
        "#SBATCH --comment=hi", "#SBATCH --begin=now+1hour\n#SBATCH --comment=hi"
    )
    assert script == (held.run.plan / "job.sbatch").read_text()
    status = cluster_cli(["status", "digits"], cwd=tmp_path)
    assert "earliest start" in status.stdout, status
    for _ in range(2):
        cancelled = cluster_cli(["cancel", "digits"], cwd=tmp_path)
        assert cancelled.code == 0, cancelled
    assert held.job["JobState"] == "CANCELLED"
    after = cluster_cli(["status", str(held.job_id), "--exit-code"], cwd=tmp_path)
    assert after.code == 77, after


@pytest.mark.proves(
    "`--dry-run` needs no Slurm",
)
def test_the_dry_run_needs_neither_srun_nor_a_cluster(tmp_path: Path) -> None:
    bare = {"PATH": str(Path(sys.executable).parent), "SLURM_CONF": None}
    shown = launch(tmp_path, "digits", *TWO_BY_TWO, "--dry-run", DIGITS, env=bare)
    assert shown.code == 0, shown
    assert shown.stdout.startswith("#!/bin/bash\n")
    refused = launch(tmp_path, "digits", *TWO_BY_TWO, DIGITS, env=bare)
    assert refused.code == 69, refused
    assert "sbatch is not on this machine's PATH" in refused.stderr
    assert "--dry-run" in refused.stderr
    assert not (tmp_path / "runs" / "digits").exists(), "a refused launch leaves nothing"


@pytest.mark.proves(
    "A rank's exit code is the job's and the command's; its own 79 requeues nothing",
    limits="codes 41 and 79",
)
@pytest.mark.slow
def test_a_ranks_exit_code_is_the_jobs_and_the_commands(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    # The other rank waits: its own end would come later, with another code.
    script.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    print('about to leave', file=sys.stderr)\n"
        "    sys.exit(int(sys.argv[1]))\n"
        "time.sleep(60)\n"
    )
    shape = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "1")
    for code, slurm_code in (
        (41, "41:0"),
        (79, "1:0"),
    ):  # a rank's own 79 must not look like ours to the script
        ended = launch(tmp_path, f"fail-{code}", *shape, script, code)
        failed = SlurmRun(slurm, RunDir(tmp_path / "runs" / f"fail-{code}"))
        assert ended.code == code, ended
        assert failed.job["ExitCode"] == slurm_code
        assert failed.job["Restarts"] == "0"
        block = [line for line in ended.stderr.splitlines() if line.startswith("FAILED: ")]
        assert len(block) == 1, ended
        assert block[0].startswith("FAILED: rank 1 (node 1, local rank 0) on 127.0.0.")
        assert cluster_cli(["status", f"fail-{code}", "--exit-code"], cwd=tmp_path).code == code


@pytest.mark.proves(
    "A secret's value is in the ranks' environment and one 0600 file, not in Slurm's state, script, "
    "records or logs",
    limits="the file goes when the run ends",
)
def test_a_secrets_value_is_in_the_ranks_environment_and_nowhere_else(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "spend.py"
    script.write_text(
        "import os, time\n"
        "print('length', len(os.environ['API_TOKEN']))\n"
        "while not os.path.exists('seen'):\n"
        "    time.sleep(0.05)\n"
    )
    environ = {"API_TOKEN": CANARY, "OTHER_TOKEN": CANARY}
    words = (
        "--detach",
        *ONE_BY_ONE,
        "--secret",
        "API_TOKEN",
        "--run-dir",
        tmp_path / "runs" / "spend",
        script,
    )
    said = launch(tmp_path, "spend", *words, env=environ)
    assert said.code == 0, said
    spending = SlurmRun(slurm, RunDir(tmp_path / "runs" / "spend"))
    spending.wait_for(lambda: "length 26" in spending.console(), "the rank has the secret")
    secret = spending.run.secrets
    assert secret.stat().st_mode & 0o777 == 0o600
    everything = {
        "scontrol show job": slurm.run("scontrol", "show", "job", "-dd", str(spending.job_id)).stdout,
        "batch script": slurm.batch_script(spending.job_id).decode(),
        "ps": subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout,
        **{
            str(path): path.read_text(errors="replace")
            for path in files_of(spending.run.path)
            if path != secret
        },
    }
    assert [name for name, text in everything.items() if CANARY in text] == []
    state = [path for path in files_of(state_folder(slurm)) if CANARY.encode() in content(path)]
    assert state == [], "slurmctld keeps the environment of a job"
    (tmp_path / "seen").touch()
    spending.wait_done()
    assert not secret.exists(), "gone when the run has ended"
    assert [
        str(path) for path in files_of(spending.run.path) if CANARY in path.read_text(errors="replace")
    ] == []


def state_folder(slurm: SlurmCluster) -> Path:
    return Path(slurm.run("scontrol", "show", "config").stdout.partition("StateSaveLocation")[2].split()[1])


def content(path: Path) -> bytes:
    """Nothing of a file that slurmctld has replaced meanwhile: the new one was listed, too."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.proves(
    "A job submitted from inside a job has nothing of the outer one",
)
def test_a_job_submitted_from_inside_a_job_has_nothing_of_the_outer_one(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    look = tmp_path / "look.py"
    look.write_text(
        "import os, pathlib\n"
        "pathlib.Path('inner.txt').write_text('\\n'.join(f'{k}={v}' for k, v in os.environ.items()))\n"
    )
    words = f"{sys.executable} -P -m dist_train.cli.main launch --launcher slurm --name inner"
    outer = tmp_path / "outer.sbatch"
    outer.write_text(
        "#!/bin/bash\n#SBATCH --gpus-per-node=3 --cpus-per-task=3 --nodes=1 --output=outer.txt\n"
        f"srun bash -c 'export RANK=7 SBATCH_PARTITION=nowhere; exec {words} {' '.join(ONE_BY_ONE)} {look}'\n"
    )
    job = subprocess.run(
        ["sbatch", "--parsable", str(outer)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    slurm.wait_for(int(job.stdout), ("COMPLETED", "FAILED"), within_s=60)
    said = (tmp_path / "outer.txt").read_text()
    inner = SlurmRun(slurm, RunDir(tmp_path / "runs" / "inner"))
    assert inner.job["JobState"] == "COMPLETED", said
    assert "not handed to sbatch" in said
    assert "SBATCH_PARTITION" in said
    assert inner.job.get("NumCPUs") == "1", inner.job
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "inner.txt").read_text().splitlines())
    assert seen["RANK"] == "0"
    assert seen["SLURM_JOB_ID"] == str(inner.job_id)
    assert "SLURM_GPUS_PER_NODE" not in seen


@pytest.mark.proves(
    "What Slurm refuses is reported at once with Slurm's message",
)
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-p", "nowhere"), "invalid partition"),
        (("--nodes", "9"), "node configuration is not available"),
        (("--mem", "900G"), "memory"),
    ],
)
def test_what_slurm_refuses_is_reported_at_once_with_slurms_message(
    slurm: SlurmCluster, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    began = time.monotonic()
    refused = launch(tmp_path, "wrong", "--device", "cpu", *words, DIGITS)
    assert refused.code == 69, refused
    assert text in refused.stderr.lower()
    assert time.monotonic() - began < 15
    assert not (tmp_path / "runs" / "wrong").exists()


@pytest.mark.proves(
    "A dead controller is 69 and `unknown`, never a failed job",
)
def test_a_dead_controller_is_69_and_no_state_of_the_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = submit(slurm, tmp_path, "held", *ONE_BY_ONE, "--sbatch-arg", "begin=now+1hour", DIGITS)
    slurm.stop_controller()
    try:
        refused = launch(tmp_path, "late", *ONE_BY_ONE, DIGITS)
        status = cluster_cli(["status", "held"], cwd=tmp_path)
    finally:
        slurm.start_controller()
    assert refused.code == 69, refused
    assert "controller cannot be reached" in refused.stderr
    assert not (tmp_path / "runs" / "late").exists()
    assert status.code == 69, status
    assert "unknown" in status.stdout
    assert "failed" not in status.stdout
    assert cluster_cli(["cancel", "held"], cwd=tmp_path).code == 0
    assert held.job["JobState"] == "CANCELLED"


def test_a_held_job_has_the_command_that_releases_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = submit(slurm, tmp_path, "held", *ONE_BY_ONE, "--sbatch-arg", "begin=now+1hour", DIGITS)
    slurm.run("scontrol", "uhold", str(held.job_id))
    status = cluster_cli(["status", "held"], cwd=tmp_path)
    assert "it will not start by itself" in status.stdout, status
    assert f"scontrol release {held.job_id}" in status.stdout
    listed = cluster_cli(["list"], cwd=tmp_path)
    assert "pending" in listed.stdout, listed


def test_ctrl_c_detaches_and_the_job_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "alone")
    with following(
        tmp_path, "alone", *ONE_BY_ONE, "--env", "SLOW_S=0.002", SLOW, "trainer.steps=30"
    ) as command:
        alone = SlurmRun(slurm, run)
        alone.wait_for(lambda: bool(run.is_run and alone.events("attempt_started")), "the job has begun")
        command.send_signal(2)
        assert command.wait(timeout=10) == 130
    said = (tmp_path / "out.txt").read_text()
    assert f"detached: job {alone.job_id} goes on" in said
    assert "dist-train cancel alone" in said
    followed = cluster_cli(["logs", "alone", "-f", "--rank", "0"], cwd=tmp_path, timeout_s=90)
    assert followed.code == 0, followed
    assert "step 30/30" in followed.stdout
    alone.wait_done()


@pytest.mark.proof
@pytest.mark.proves(
    "`slurm/train.sbatch` is what its README's command renders, and plain `sbatch` runs it",
)
def test_the_script_in_slurm_works_with_plain_sbatch(slurm: SlurmCluster, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import dist_train as dt\n"
        "with dt.init() as run:\n"
        "    print('world', run.world_size, 'dir', run.dir)\n"
    )
    text = (REPOSITORY / "slurm" / "train.sbatch").read_text()
    text = text.replace("/shared/you/venv/bin/python", sys.executable).replace("/shared/you", str(tmp_path))
    # This cluster has no real GPU: the lines that a person edits.
    text = text.replace("#SBATCH --gpus-per-node=4\n", "").replace("--device cuda", "--device cpu")
    text = text.replace("=32", "=1").replace("--threads-per-rank 8", "--threads-per-rank 1")
    text = text.replace("NPROC_PER_NODE=4", "NPROC_PER_NODE=1")
    script = tmp_path / "mine.sbatch"
    script.write_text(text)
    (tmp_path / "runs" / "train" / "logs").mkdir(parents=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DIST_TRAIN")}
    for turn, cold in ((1, COLD_TASKS), (2, {})):
        said = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            env={**clean, **cold},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
        by_hand = SlurmRun(slurm, RunDir(tmp_path / "runs" / "train"))
        slurm.wait_for(int(said.stdout), ("COMPLETED", "FAILED"), within_s=60)
        assert by_hand.job["JobState"] == "COMPLETED", by_hand.console()
        assert by_hand.job_id == int(said.stdout), f"job.json names the job of turn {turn}"
    assert by_hand.console().count("world 2 dir") == 2
    status = cluster_cli(["status", "train"], cwd=tmp_path)
    assert "done" in status.stdout, status
    refused = cluster_cli(["resume", "train"], cwd=tmp_path)
    assert refused.code == 78, refused
    assert "sbatch YOUR-SCRIPT" in refused.stderr


@pytest.mark.proof
@pytest.mark.proves(
    "`srun python train.py`, one task per rank, works without an agent",
)
@pytest.mark.slow
def test_direct_mode_one_task_per_rank_by_srun(slurm: SlurmCluster, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import sys, torch, dist_train as dt\n"
        "with dt.init(init_method=sys.argv[1]) as run:\n"
        "    total = torch.tensor([float(run.rank)])\n"
        "    torch.distributed.all_reduce(total)\n"
        "    print(f'rank {run.rank} of {run.world_size}, node {run.node_rank} of {run.num_nodes}, '\n"
        "          f'local {run.local_rank}, sum {total.item():g}')\n"
    )
    shape = ("srun", "-N", "2", "--ntasks-per-node=2", "--mpi=none", "--kill-on-bad-exit=1")
    for method, cold in (("env://", COLD_TASKS), (f"file://{tmp_path}/meet", {})):
        done = subprocess.run(
            [*shape, sys.executable, str(train), method],
            env={**os.environ, **cold},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done
        assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) == [
            "rank 0 of 4, node 0 of 2, local 0, sum 6",
            "rank 1 of 4, node 0 of 2, local 1, sum 6",
            "rank 2 of 4, node 1 of 2, local 0, sum 6",
            "rank 3 of 4, node 1 of 2, local 1, sum 6",
        ]


def test_the_agent_runs_behind_a_container_runtimes_prefix(slurm: SlurmCluster, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime.sh"
    runtime.write_text('#!/bin/bash\necho "runtime on $SLURMD_NODENAME"\nexec "$@"\n')
    runtime.chmod(0o755)
    script = tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    shape = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "1")
    done = launch(
        tmp_path, "boxed", *shape, "--exec-prefix", str(runtime), "--setup", "export MODULE=cuda", script
    )
    assert done.code == 0, done
    assert done.stdout.count("runtime on 127.0.0.1") == 2
    assert shutil.which("srun")
