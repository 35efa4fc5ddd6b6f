"""Variables that a local run has and a job on Slurm has not are named before it is submitted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from slurm_stand_ins import Job

from dist_train.cli.main import run
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


def test_a_dry_run_names_them_and_the_signal_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "/scratch/hf")
    shape = ["--launcher", "slurm", "--nodes", "1", "--gpus-per-node", "1", "--device", "cpu"]
    words = [*shape, "--sbatch-arg", "signal=B:USR1@300", "--dry-run", "train.py"]
    assert run(["launch", *words]) == 0
    shown = capfd.readouterr()
    assert re.search(r"absent from the job: .*\bHF_HOME\b", shown.err)
    assert "Slurm sends B:USR1@300" in shown.err
    assert "HF_HOME" not in shown.out, "the plan depends on no environment"
    assert run(["launch", *words[:-1], "--env", "HF_HOME=/scratch/hf", "train.py"]) == 0
    assert "HF_HOME" not in capfd.readouterr().err


def test_options_of_srun_in_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load((Path(__file__).parents[3] / "examples" / "digits.yaml").read_text())
    config["launch"] = {"launcher": "slurm", "slurm": {"srun_arg": ["environment=./a.toml", "mpi=pmix"]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    assert run(["launch", "--nodes", "2", "--gpus-per-node", "2", "--dry-run", "mine.yaml"]) == 0
    script = capfd.readouterr().out
    assert "--mpi=pmix --environment=./a.toml" in script
