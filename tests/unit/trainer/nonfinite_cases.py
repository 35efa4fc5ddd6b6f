"""A regression whose data set holds samples that make the loss or only the gradient not finite."""

from __future__ import annotations

import shutil

import torch
from torch import Tensor, nn

from dist_train.trainer.callback import Callback, CallbackContext
from dist_train.trainer.task import LossOutput


class Line:
    """Forty samples of a straight line; the inputs of some are nan."""

    def __init__(self, samples: int = 40, bad: tuple[int, ...] = ()) -> None:
        self._x = torch.linspace(-1, 1, samples).reshape(-1, 1)
        self._y = 3 * self._x + 1
        for index in bad:
            self._x[index] = float("nan")

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def net(norm: bool = False) -> nn.Module:
    """One linear layer, perhaps after a batch norm."""
    layers: list[nn.Module] = [nn.BatchNorm1d(1)] if norm else []
    return nn.Sequential(*layers, nn.Linear(1, 1))


def deep() -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))


class _RootOfZero(torch.autograd.Function):
    """Identity, whose gradient is infinite."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * float("inf")


class InfiniteGradient:
    """Mean squares; the gradient of every batch that holds the first input is infinite, its loss is not."""

    def units(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[0])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> LossOutput:
        total = (model(batch[0]) - batch[1]).square().sum()
        if (batch[0] == -1).any():
            total = _RootOfZero.apply(total)  # type: ignore[no-untyped-call]
        return LossOutput(total)


class RemovesCheckpoints(Callback):
    """Empties the checkpoints' directory once, after a step."""

    def __init__(self, after_step: int) -> None:
        self._after_step = after_step

    def on_step_end(self, context: CallbackContext) -> None:
        if context.step == self._after_step:
            for found in (context.run.directory / "checkpoints").glob("step-*"):
                shutil.rmtree(found)
