"""`env`: the facts, and with --explain what they follow from."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = (
        "SLURM_",
        "OMPI_",
        "PMI_",
        "DIST_TRAIN_",
        "TORCHELASTIC_",
        "KUBERNETES_",
        "GROUP_",
        "LOCAL_",
        "MASTER_",
    )
    for name in list(os.environ):
        if name.startswith(prefixes) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def put(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_one_process(dist_train: Any) -> None:
    said = dist_train("env")
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["rank", "0"]
    assert said.out.splitlines()[-1].split() == ["source", "single"]
    assert "nothing: one process" in dist_train("env", "--explain").out


def test_explain_names_what_was_used_and_what_was_not(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        monkeypatch,
        {**TORCHRUN, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "DIST_TRAIN_INIT_METHOD": "file:///s/x"},
    )
    said = dist_train("env", "--explain")
    assert said.code == 0
    for text in (
        "detected: torchrun",
        "init method: file:///s/x (DIST_TRAIN_INIT_METHOD)",
        "MASTER_ADDR: n0",
        "MASTER_PORT: 29500",
        "  RANK=3",
        "  SLURM_PROCID=0: torchrun's variables win",
    ):
        assert text in said.out


def test_json(dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, TORCHRUN)
    found = json.loads(dist_train("env", "--json").out)
    assert (found["schema_version"], found["rank"], found["source"]) == (1, 3, "torchrun")
    assert (found["init_method"], found["master_port"]) == ("env://", 29500)
    assert found["used"]["RANK"] == "3"
    assert found["ignored"] == []


def test_a_missing_srun_is_reported(dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"})
    assert "SLURM_JOB_ID=7: this process is not inside a step of srun" in dist_train("env", "--explain").out


def test_half_an_environment_is_an_error_that_shows_the_variables(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, {"RANK": "1"})
    said = dist_train("env")
    assert (said.code, said.out) == (78, "")
    assert "WORLD_SIZE is not set but RANK=1 is" in said.err
    explained = dist_train("env", "--explain")
    assert (explained.code, explained.out) == (78, "seen:\n  RANK=1\n")
    assert json.loads(dist_train("env", "--explain", "--json").out)["seen"] == {"RANK": "1"}


def test_secrets_are_not_printed(dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, {"SLURM_STEP_TOKEN": "hush", "DIST_TRAIN_API_KEY": "hush"})
    said = dist_train("env", "--explain")
    assert "hush" not in said.out
    assert "SLURM_STEP_TOKEN=…" in said.out
