"""Copies of parts are compared before a save; each row is stored as the row that it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sharded_training import Layout, make

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess
HSDP = Layout("hsdp", 4)
CUT = Layout("tensor_parallel", 2)
BOTH_CUT = Layout("fsdp_tensor_parallel", 4)


def save_unlike_copies(directory: Path, odd: int, layout: Layout) -> str:
    with dt.init(device="cpu", timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        if run.rank == odd:
            with torch.no_grad():
                model.head.weight.to_local().view(-1)[0] += 1e-3
        with pytest.raises(ReplicaMismatch) as caught:
            CheckpointManager(directory).save(1, {"model": model, "optimizer": optimizer})
        return str(caught.value)


def test_copies_of_a_part_that_differ_are_not_saved(tmp_path: Path) -> None:
    said = run_ranks(save_unlike_copies, 4, args=(tmp_path, 3, HSDP))
    assert len(set(said)) == 1
    assert "step 1 is not saved: rank 3 has another part of 'model/head.weight' than rank 1" in said[0]
    assert "no majority" in said[0]
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.proves("A parameter that every rank of a tensor group has whole, and that differs, is not saved")
@pytest.mark.parametrize(
    ("layout", "odd", "said"),
    [
        (CUT, 1, "rank 1 has other weights ('model') than rank 0, first in 'model/head.weight'"),
        (BOTH_CUT, 3, "rank 3 has another part of 'model/head.weight' than rank 2"),
    ],
)
def test_what_ranks_of_a_tensor_group_have_together_is_compared(
    tmp_path: Path, layout: Layout, odd: int, said: str
) -> None:
    found = run_ranks(save_unlike_copies, layout.ranks, args=(tmp_path, odd, layout))
    assert len(set(found)) == 1
    assert said in found[0]
    assert not list(tmp_path.glob("step-*"))


def untrained(directory: Path, layout: Layout) -> str:
    with dt.init(device="cpu", timeout_s=30):
        model, optimizer = make(layout, 0)
        return CheckpointManager(directory).save(1, {"model": model, "optimizer": optimizer}).weights_hash


@pytest.mark.proof
def test_each_row_of_a_layer_that_is_cut_is_stored_as_the_row_that_it_is(tmp_path: Path) -> None:
    (expected,) = run_ranks(untrained, 1, args=(tmp_path / "one", Layout("single", 1)))
    for layout in (CUT, BOTH_CUT):
        assert set(run_ranks(untrained, layout.ranks, args=(tmp_path / layout.name, layout))) == {expected}
