"""save_model on several ranks: by all of them, by rank 0 alone, by another one alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.checkpoint import rank_zero_writes
from dist_train.errors import CheckpointWriteError, UsageError
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess


def filled(value: float) -> nn.Module:
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, value)
    return model


def in_every_way(folder: Path) -> None:
    with dt.init(device="cpu", timeout_s=20, collective_timeout_s=5) as run:
        model = dt.prepare(filled(1.0))
        if run.is_main:
            dt.checkpoint.save_model(model, folder / "best.safetensors")
        control = run.control
        control.barrier()
        # By all: when it returns, any rank can read what rank 0 wrote.
        for value in (2.0, 3.0):
            torch.nn.init.constant_(dt.unwrap(model).bias, value)
            dt.checkpoint.save_model(model, folder / "all.safetensors")
            target = filled(0.0)
            dt.checkpoint.load_model(folder / "all.safetensors", target)
            assert target.bias.tolist() == [value] * 2
            control.barrier()
        # The error of rank 0 is every rank's.
        (folder / "file").touch()
        with pytest.raises(CheckpointWriteError, match=r"could not be written"):
            dt.checkpoint.save_model(model, folder / "file" / "x.safetensors")
        if run.rank == 1:
            rank_zero_writes.BEGIN_S = 0.2
            with pytest.raises(UsageError, match="rank 0 has not called it for 0 s"):
                dt.checkpoint.save_model(model, folder / "rank1.safetensors")


def test_rank_0_alone_or_all_ranks_save_a_model(tmp_path: Path) -> None:
    run_ranks(in_every_way, 2, args=(tmp_path,))
    assert {path.name for path in tmp_path.iterdir()} == {"best.safetensors", "all.safetensors", "file"}
