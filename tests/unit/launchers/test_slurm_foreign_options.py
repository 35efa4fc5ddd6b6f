"""`--srun-arg` and a second GRES: rendered where Slurm reads them, or refused with the reason."""

from __future__ import annotations

import re
import shlex

import pytest
from pydantic import ValidationError
from slurm_stand_ins import Job

from dist_train.jobs import JobSpec
from launchers._slurm.batch_script import render
from launchers._slurm.slurm_options import Options


def srun_options(spec: JobSpec, **options: object) -> list[str]:
    """What stands between srun and the agent."""
    text = render(spec, Options(**options)).decode()  # type: ignore[arg-type]
    step = next(line for line in text.splitlines() if line.startswith("srun --unbuffered"))
    words = shlex.split(step)
    return words[1 : words.index("${shield[@]}")]


def refusal(**given: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Options(**given)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    "word",
    [
        "container-image=nvcr.io#nvidia/pytorch:25.06-py3",
        "container-mounts=/scratch/me:/scratch/me,/home:/home:ro+rprivate",
        "environment=./ngc-pytorch.toml",
        "cpu-bind=mask_cpu:7e,7e00",
        "no-container-mount-home",
        "exclusive",
        'comment=it\'s $HOME; `date` "x"',
        "--gpu-bind=none",
    ],
)
def test_an_option_of_srun_arrives_as_one_word(job: Job, word: str) -> None:
    assert srun_options(job(), srun_arg=(word,))[-1] == "--" + word.removeprefix("--")


def test_the_sites_mpi_stands_in_place_of_ours(job: Job) -> None:
    assert [word for word in srun_options(job(), srun_arg=("mpi=pmix",)) if word.startswith("--mpi")] == [
        "--mpi=pmix"
    ]
    assert [word for word in srun_options(job()) if word.startswith("--mpi")] == ["--mpi=none"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("nodes=3", "one agent on every node"),
        ("ntasks=8", "one agent on every node"),
        ("kill-on-bad-exit=0", "a lost agent must end the step"),
        ("export=NONE", "--env and --secret"),
        ("output=x", "--run-dir"),
        ("gres=gpu:1", "its step has all of it"),
        ("signal=USR1", "--sbatch-arg signal"),
        ("label", "--show-ranks all"),
        ("container-image=a\n#SBATCH --uid=0", "not of the form"),
        ("container-image=a\u2028b", "not of the form"),
        ("container-image=a\x00b", "not of the form"),
        ("-n 3", "in srun's long names"),
    ],
)
def test_an_option_of_srun_that_is_ours_is_refused_with_the_reason(word: str, reason: str) -> None:
    assert reason in refusal(srun_arg=(word,))


def test_the_same_option_of_srun_twice() -> None:
    assert "mpi is given twice: mpi=pmi2 and mpi=pmix" in refusal(srun_arg=("mpi=pmi2", "mpi=pmix"))


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"gpu_request": "gres", "gpu_type": "a100"}, {"--gres=gpu:a100:2,nvme:1,craynetwork"}),
        ({"gpu_request": "gres"}, {"--gres=gpu:2,nvme:1,craynetwork"}),
        ({}, {"--gpus-per-node=2", "--gres=nvme:1,craynetwork"}),
        ({"gpu_request": "none"}, {"--gres=nvme:1,craynetwork"}),
    ],
)
def test_a_second_gres_stands_beside_the_gpus(job: Job, options: dict[str, str], lines: set[str]) -> None:
    chosen = Options(sbatch_arg=("gres=nvme:1,craynetwork",), **options)  # type: ignore[arg-type]
    text = render(job(device="cuda"), chosen).decode()
    asked = (shlex.split(line)[1] for line in text.splitlines() if re.match("#SBATCH --(gres|gpu)", line))
    assert set(asked) == lines


def test_a_gres_of_a_job_on_cpus(job: Job) -> None:
    text = render(job(), Options(sbatch_arg=("gres=shard:2",))).decode()
    assert "#SBATCH --gres=shard:2\n" in text


@pytest.mark.parametrize("word", ["gres", "gres=", "gres=nvme 1", "gres=$(date)"])
def test_a_gres_that_is_none(word: str) -> None:
    assert "not of the form NAME[:TYPE][:COUNT]" in refusal(sbatch_arg=(word,))
