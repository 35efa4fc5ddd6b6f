"""An export reads tensor by tensor: its memory does not grow with the model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint
from checkpoint_cases import manager
from torch import nn

import dist_train as dt
from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.weights.convert import export_weights
from dist_train.testing.ranks import run_ranks

MIB = 1 << 20
TENSORS, TENSOR_BYTES = 12, 16 * MIB


def model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(TENSORS)))


def save_whole(folder: Path, width: int) -> str:
    return manager(folder).save(1, {"model": model(width)}).weights_hash


def save_spread(folder: Path, width: int) -> str:
    """By two ranks, each with half of every tensor."""
    return run_ranks(_save_spread, 2, 120, args=(folder, width))[0]


def _save_spread(folder: Path, width: int) -> str:
    from torch.distributed.fsdp import fully_shard

    dt.init()
    spread = model(width)
    for part in (*spread, spread):
        fully_shard(part)
    return dt.checkpoint.CheckpointManager(folder).save(1, {"model": spread}).weights_hash


def save_dcp(folder: Path, width: int) -> str:
    state = model(width).state_dict()
    torch.distributed.checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    return weights_hash(state)


def memory_of_export(tiny: Path, source: Path, target: Path) -> int:
    """Bytes that an export of `source` takes in addition to one of `tiny`, in a process of its own."""
    script = Path(__file__).with_name("export_memory.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tiny), str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.multiprocess
@pytest.mark.proof
@pytest.mark.parametrize("save", [save_whole, save_spread, save_dcp])
def test_an_export_holds_one_tensor(tmp_path: Path, save: Callable[[Path, int], str]) -> None:
    save(tmp_path / "tiny", 8)
    wanted = save(tmp_path / "large", 2048)
    target = tmp_path / "large.safetensors"
    taken = memory_of_export(tmp_path / "tiny", tmp_path / "large", target)
    assert target.stat().st_size > TENSORS * TENSOR_BYTES
    # A tensor, what is read at a time, and what the allocator keeps.
    assert taken < 5 * TENSOR_BYTES
    assert export_weights(target, tmp_path / "again.safetensors")["weights_hash"] == wanted
