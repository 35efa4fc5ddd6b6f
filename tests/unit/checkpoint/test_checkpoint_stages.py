"""Saves of a pipeline: copies of stages and tied weights are compared, loops of one's own go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_training import Layout, Model, loss_sum, make, train, whole_state
from torch import nn

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.weights.model_io import save_model
from dist_train.errors import CheckpointError
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess
STAGES = Layout("pipeline", 2)
COPIES = Layout("pipeline", 4, {"stage": 2})


def changed(layout: Layout, folder: Path, odd: int, what: str) -> str:
    """What a save says once one rank has another value than its copy."""
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        train(run, model, optimizer, 0, 1)
        start = "embedding" if layout == STAGES else "blocks"  # on both stages; on one
        named = dt.unwrap(model).named_parameters()
        own = next(p for name, p in named if not p.is_meta and name.startswith(start))
        if run.rank == odd:
            with torch.no_grad():
                if what == "weight":
                    own.view(-1)[0] += 1
                elif what == "moment":
                    optimizer.state[own]["exp_avg"].view(-1)[0] += 1
                else:
                    del optimizer.state[own]
        with pytest.raises(ReplicaMismatch) as caught:
            CheckpointManager(folder).save(1, {"model": model, "optimizer": optimizer})
        return str(caught.value)


@pytest.mark.parametrize(
    ("layout", "odd", "what", "words"),
    [
        (COPIES, 2, "weight", "'model/blocks.0.norm.weight'"),
        (COPIES, 3, "weight", "'model/blocks.1.norm.weight'"),
        (COPIES, 0, "moment", "'optim/blocks.0.norm.weight/exp_avg'"),
        (COPIES, 2, "no state", "optimizer state ('optimizer')"),
        (STAGES, 0, "weight", "'model/embedding.weight'"),
    ],
    ids=["first-stage", "last-stage", "moment", "no-state", "tied"],
)
def test_a_copy_that_differs_is_named_and_nothing_is_saved(
    tmp_path: Path, layout: Layout, odd: int, what: str, words: str
) -> None:
    for said in run_ranks(changed, layout.ranks, args=(layout, tmp_path, odd, what)):
        assert "is not saved" in said
        assert words in said
    assert not list(tmp_path.glob("step-*"))


class Tokens(torch.utils.data.Dataset[torch.Tensor]):
    """Twenty-two windows of four tokens: the last step of an epoch is shorter."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 5, (4,), generator=torch.Generator().manual_seed(index))


def loop(folder: Path, strategy: str, options: dict[str, Any], epochs: int) -> dict[str, str]:
    """A loop with dt.loader, saved after each epoch, and gone on with where it ended."""
    with dt.init(device="cpu", seed=1, timeout_s=30):
        torch.manual_seed(0)
        model = dt.prepare(Model(), strategy, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = dt.loader(Tokens(), batch_size=8, accumulate=2)
        manager = CheckpointManager(folder, keep_last=99)
        state = {"model": model, "optimizer": optimizer, "loader": loader}
        restored = manager.load_latest(state)
        done = 0 if restored is None else restored.step
        for epoch in range(done, epochs):
            step = []
            for micro in loader.micro_batches():
                step.append(micro)
                if len(step) < micro.micros:
                    continue
                units = [each.count * 4 for each in step]
                dt.forward_backward(model, [each.batch for each in step], loss_sum, units)
                dt.clip_grad_norm_(model, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step.clear()
            manager.save(epoch + 1, state)
        return whole_state(model, optimizer)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("layout", [STAGES, COPIES], ids=["stages", "copies"])
def test_a_loop_that_goes_on_ends_as_one_that_was_not_interrupted(tmp_path: Path, layout: Layout) -> None:
    words = (layout.strategy, dict(layout.options))
    whole = run_ranks(loop, layout.ranks, args=(tmp_path / "whole", *words, 3))
    run_ranks(loop, layout.ranks, args=(tmp_path / "parts", *words, 1))
    assert run_ranks(loop, layout.ranks, args=(tmp_path / "parts", *words, 3)) == whole


class Counted(nn.Linear):
    """Counts its calls in a buffer outside the state_dict, and has one inside, such as a running mean."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean += x.detach().sum()
        return super().forward(x)


def counted(folder: Path, strategy: str, save: bool) -> dict[str, float]:
    """Train one step and save, or load; this rank's buffers."""
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        torch.manual_seed(0)
        model = dt.prepare(nn.Sequential(Counted(), Counted()), strategy)
        optimizer = torch.optim.Adagrad(model.parameters())  # it makes state for all parameters at once
        state = {"model": model, "optimizer": optimizer}
        if save:
            batches = [torch.full((1, 2), 1.0 + run.place.data_rank)] * 2
            dt.forward_backward(model, batches, lambda m, x: m(x).sum(), [1, 1])
            optimizer.step()
            CheckpointManager(folder).save(1, state)
        else:
            CheckpointManager(folder).load_latest(state)
        return {name: one.item() for name, one in dt.unwrap(model).named_buffers() if not one.is_meta}


@pytest.mark.parametrize(("first", "then"), [("pipeline", "ddp"), ("ddp", "pipeline")])
def test_another_mesh_of_as_many_ranks_has_the_buffers_of_one_copy(
    tmp_path: Path, first: str, then: str
) -> None:
    saved = run_ranks(counted, 2, args=(tmp_path, first, True))
    if first == "ddp":
        expected = saved[0]
        assert saved[1]["0.mean"] != expected["0.mean"]
    else:
        expected = saved[1] | {name: value for name, value in saved[0].items() if name.startswith("0.")}
        assert saved[0]["1.calls"] == 0 < expected["1.calls"]
    for found in run_ranks(counted, 2, args=(tmp_path, then, False)):
        assert found == {name: expected[name] for name in found}


def refused(folder: Path) -> str:
    with dt.init(device="cpu", timeout_s=30):
        model, _ = make(STAGES, 0)
        with pytest.raises(CheckpointError) as caught:
            save_model(model, folder / "model.safetensors")
        return str(caught.value)


def test_one_file_of_a_model_in_stages_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    for said in run_ranks(refused, 2, args=(tmp_path,)):
        assert "checkpoint export" in said


def test_a_plain_model_without_values_is_refused_before_the_training(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="'model/weight' is on the device meta"):
        CheckpointManager(tmp_path).load_latest({"model": model})
