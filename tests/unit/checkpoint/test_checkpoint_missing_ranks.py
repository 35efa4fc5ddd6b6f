"""A save or load that only some ranks call names the others, before any collective hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as torch_dist

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

pytestmark = pytest.mark.multiprocess


def under_is_main(folder: Path, call: str) -> None:
    """As torch.save is called: on rank 0 alone, while the others train on."""
    with dt.init(device="cpu", timeout_s=3) as run:
        model = dt.prepare(torch.nn.Linear(1, 1))
        manager = CheckpointManager(folder)
        if run.is_main and call == "save":
            manager.save(2, {"model": model})
        if run.is_main and call == "load":
            manager.load_latest({"model": model})
        torch_dist.barrier()


@pytest.mark.parametrize(
    ("call", "said"), [("save", "CheckpointManager.save(2)"), ("load", "CheckpointManager.load_latest")]
)
def test_a_call_on_rank_zero_alone_names_the_ranks_that_did_not_come(
    tmp_path: Path, call: str, said: str
) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(under_is_main, 3, args=(tmp_path, call))
    text = caught.value.tracebacks[0]
    assert f"{said}: ranks 1-2 did not come within 3 s" in text
    assert "not under `if run.is_main:`" in text


def other_steps(folder: Path) -> str:
    with dt.init(device="cpu", timeout_s=10) as run:
        with pytest.raises(dt.errors.ConfigError) as caught:
            CheckpointManager(folder).save(1 + run.rank, {"value": 1})
        return str(caught.value)


def test_ranks_at_different_steps_are_named(tmp_path: Path) -> None:
    for said in run_ranks(other_steps, 2, args=(tmp_path,)):
        assert "CheckpointManager.save(1): the ranks are at different steps (rank 0: 1, rank 1: 2)" in said
