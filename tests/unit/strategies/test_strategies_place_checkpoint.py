"""Random numbers in a checkpoint belong to the data coordinate, not to the rank."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.testing import run_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("twins")]


def save(meeting: str, strategy: str, folder: Path) -> float:
    """Save after some random numbers; return the next one."""
    with dt.init(seed=1, device="cpu", init_method=meeting, timeout_s=20):
        state = {"model": dt.prepare(nn.Linear(1, 1), strategy)}
        torch.rand(3)
        CheckpointManager(folder, keep_last=9).save(1, state)
        return float(torch.rand(()))


def load(meeting: str, strategy: str, folder: Path) -> tuple[float, bool, list[str]]:
    """Load; return the next random number, whether the state was restored, and what was logged about it."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("dist_train.checkpoint.state.rng_restore").addHandler(handler)
    with dt.init(seed=2, device="cpu", init_method=meeting, timeout_s=20):
        state = {"model": dt.prepare(nn.Linear(1, 1), strategy)}
        restored = CheckpointManager(folder).load_latest(state)
        assert restored is not None
        return float(torch.rand(())), restored.rng_restored, said


def ranks(fn, count: int, strategy: str, folder: Path, meeting: Path):
    return run_ranks(fn, count, args=(f"file://{meeting}", strategy, folder))


def test_each_share_has_one_state_which_all_its_ranks_get_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved = ranks(save, 4, "twins", folder, tmp_path / "first")
    assert saved[0] == saved[1] != saved[2] == saved[3]
    manifest = parse_manifest((folder / "step-00000001" / "manifest.json").read_bytes())
    assert (manifest.mesh, manifest.data_size) == ((("replicate", 2), ("twin", 2)), 2)
    assert {key.split("/")[0] for key in manifest.tensors if "/rng/" in key} == {"data0", "data1"}
    assert ranks(load, 4, "twins", folder, tmp_path / "second") == [(value, True, []) for value in saved]


@pytest.mark.parametrize(("first", "second"), [("twins", "ddp"), ("ddp", "twins")])
def test_on_another_mesh_of_as_many_ranks_it_is_derived_afresh_and_logged(
    tmp_path: Path, first: str, second: str
) -> None:
    folder = tmp_path / "checkpoints"
    saved = ranks(save, 4, first, folder, tmp_path / "first")
    found = ranks(load, 4, second, folder, tmp_path / "second")
    assert [restored for _, restored, _ in found] == [False] * 4
    numbers = [value for value, _, _ in found]
    assert not set(numbers) & set(saved)
    alike = [numbers.index(value) for value in numbers]
    assert alike == ([0, 0, 2, 2] if second == "twins" else [0, 1, 2, 3])
    meshes = {"twins": "replicate 2 x twin 2, data in 2", "ddp": "replicate 4, data in 4"}
    [said] = found[0][2]
    assert f"saved by {meshes[first]} and is loaded by {meshes[second]}: each rank's RNG state is " in said
    assert "all ranks take rank 0's buffers" in said
