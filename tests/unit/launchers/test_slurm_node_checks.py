"""What the batch script looks at before the ranks start: GPUs of each node, and that it is no job array."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slurm_stand_ins import Commands, Job

from dist_train.jobs import JobSpec
from launchers._slurm.batch_script import render
from launchers._slurm.slurm_options import Options

# As the real one: the check of the nodes runs once for each, the step only once.
SRUN = """case "$*" in
*" see "*) while [ "$1" != bash ]; do shift; done
  {nodes} ;;
*) exit 0 ;;
esac"""


def run(commands: Commands, spec: JobSpec, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    script = folder / "job.sbatch"
    script.write_bytes(render(spec, Options()))
    return subprocess.run(
        ["/bin/bash", str(script)],
        env={"PATH": f"{commands.folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def nodes(commands: Commands, **counts: str) -> None:
    commands.put_all("exit 0")
    each = "; ".join(
        f'SLURMD_NODENAME={name} SLURM_GPUS_ON_NODE={count} "$@"' for name, count in counts.items()
    )
    commands.put("srun", SRUN.format(nodes=each))


@pytest.mark.parametrize(("first", "second"), [("4", "2"), ("2", "4"), ("4", "")])
def test_nodes_of_unlike_gpus_are_refused_with_their_names(
    commands: Commands, job: Job, tmp_path: Path, first: str, second: str
) -> None:
    nodes(commands, n1=first, n2=second)
    done = run(commands, job(nodes=2, procs_per_node=4, device="cuda"), tmp_path)
    if not second:  # a Slurm that does not count them
        assert done.returncode == 0, done
        return
    assert done.returncode == 78, done
    assert f"not every node has GPUs for its 4 processes: n1 has {first}, n2 has {second}" in done.stderr
    assert (tmp_path / "run/control/verdict-7.0").read_text().startswith("78 not every node")
    assert not any("--unbuffered" in call for call in commands.calls), "no rank has begun"


@pytest.mark.parametrize("counts", [("4", "4"), ("8", "4")])
def test_nodes_with_enough_gpus_start(
    commands: Commands, job: Job, tmp_path: Path, counts: tuple[str, str]
) -> None:
    nodes(commands, n1=counts[0], n2=counts[1])
    done = run(commands, job(nodes=2, procs_per_node=4, device="cuda"), tmp_path)
    assert done.returncode == 0, done


def test_a_job_on_cpus_counts_no_gpus(commands: Commands, job: Job, tmp_path: Path) -> None:
    nodes(commands, n1="0", n2="1")
    done = run(commands, job(nodes=2), tmp_path)
    assert done.returncode == 0, done


@pytest.mark.parametrize("count", [1, 2])
def test_an_element_of_a_job_array_touches_no_run_directory(
    commands: Commands, job: Job, tmp_path: Path, count: int
) -> None:
    nodes(commands, n1="4", n2="4")
    done = run(commands, job(nodes=count), tmp_path, SLURM_ARRAY_TASK_ID="3")
    assert done.returncode == 78, done
    assert "one job is one run" in done.stderr
    assert not (tmp_path / "run").exists()
