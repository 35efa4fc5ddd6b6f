"""Variables that a local run has and a job on Slurm has not are named before it is submitted."""

from __future__ import annotations

import pytest
from slurm_stand_ins import Job

from launchers._slurm.absent_variables import absence_notices
from launchers._slurm.slurm_client import submit_environ

SHELL = {
    "HF_HOME": "/scratch/hf",
    "https_proxy": "http://proxy:3128",
    "NO_PROXY": "localhost",
    "TMPDIR": "/scratch/tmp",
    "TORCH_HOME": "/scratch/torch",
    "SSL_CERT_FILE": "/etc/ca.pem",
}


def test_each_is_named_with_the_option_that_hands_it_over(job: Job) -> None:
    [line] = absence_notices(job(), {**SHELL, "HOME": "/home/me", "NCCL_DEBUG": "INFO", "EDITOR": "vi"})
    for name in SHELL:
        assert name in line
        assert name not in submit_environ(SHELL), "it really is absent"
    assert '--env HF_HOME="$HF_HOME"' in line
    assert "EDITOR" not in line, "no run needs it"
    assert "NCCL_DEBUG" not in line, "it is there"
    assert "/scratch/hf" not in line, "names, and no values"


def test_what_is_given_is_not_named(job: Job) -> None:
    spec = job(env=(("HF_HOME", "/elsewhere"),), secrets=("HF_TOKEN",))
    assert absence_notices(spec, {"HF_HOME": "/x", "HF_TOKEN": "t"}) == ()


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_a_secret_is_handed_over_as_one(job: Job, name: str) -> None:
    [line] = absence_notices(job(), {name: "hidden"})
    assert f"--secret {name}" in line
    assert "--env" not in line
    assert "hidden" not in line


def test_many_are_counted(job: Job) -> None:
    [line] = absence_notices(job(), {f"HF_X{number:02d}": "" for number in range(20)})
    assert "and 12 more" in line
