"""A save in the middle of an accumulation is refused; one after a step, or of a batch left out, is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.errors import CheckpointError


def _saves(
    folder: Path, every: int, scale: float = 1.0, zero: bool | None = True, adversary: bool = False
) -> int:
    """Save after each of four batches, stepping after each `every`; how many saves were made."""
    saved = 0
    with dt.init(seed=0, device="cpu"):
        model, other = dt.prepare(nn.Linear(2, 1)), dt.prepare(nn.Linear(2, 2))
        optimizer, second = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
        loader = dt.loader(TensorDataset(torch.ones(8, 2)), 2)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
        manager = dt.checkpoint.CheckpointManager(folder)
        for index, (x,) in enumerate(loader):
            (model(x).sum() * (scale if index == 2 else 1.0)).backward()
            if index % every == every - 1 and (scale == 1.0 or index != 2):
                optimizer.step()
                if zero is not None:
                    optimizer.zero_grad(set_to_none=zero)
            if adversary:
                # Leaves gradients behind in the first model, as a generator's loss does in its judge.
                model(other(x)).sum().backward()
                second.step()
            manager.save(index + 1, state)
            saved += 1
    return saved


def test_in_the_middle_of_an_accumulation_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'optimizer' has gradients(.|\n)*save after optimizer.step"):
        _saves(tmp_path, every=2)


@pytest.mark.parametrize("zero", [True, False, None])
def test_after_each_step_it_is_not(tmp_path: Path, zero: bool | None) -> None:
    assert _saves(tmp_path, every=1, zero=zero) == 4


def test_nor_after_an_adversarys_step_or_a_batch_of_infinite_loss(tmp_path: Path) -> None:
    assert _saves(tmp_path / "a", every=1, adversary=True) == 4
    assert _saves(tmp_path / "b", every=1, scale=float("inf")) == 4
