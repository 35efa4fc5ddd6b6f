"""Models, tasks, data and optimizers as users write them, which an estimate must cope with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dist_train.trainer.task import LossOutput


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of numbers and a class of each."""

    def __init__(self, features: int = 8) -> None:
        self._features = features

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((self._features,), float(index)), torch.tensor(index % 2)


class Elsewhere(Rows):
    """Data that only the cluster has."""

    def __init__(self) -> None:
        raise FileNotFoundError("/scratch/data/train.bin")


class Layers(nn.Module):
    """Linear layers with ReLU."""

    def __init__(self, width: int = 16, depth: int = 2, features: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of two classes."""
        x = self.first(inputs).relu()
        for block in self.blocks:
            x = block(x).relu()
        return self.last(x)


class DrawnByNumpy(Layers):
    """Its first weights are drawn by numpy: no value, no weight."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        drawn = np.random.default_rng(0).normal(size=(width, 8)).astype("float32")
        self.first.weight.data.copy_(torch.from_numpy(drawn))
        self.norm = float(self.first.weight.detach().norm())


class FullOfNumbers(nn.Module):
    """Needs a value while it is made, and more memory than an estimate takes (none of it is touched)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = float(torch.ones(1).sum())
        self.large = nn.Parameter(torch.empty(9 * 2**30, dtype=torch.uint8), requires_grad=False)


class WithTensorAttribute(Layers):
    """A mask that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(16)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores, some of them masked."""
        return self.last(self.first(inputs) * self.mask)


class LooksAtValues:
    """A task that reads a value of its loss."""

    def units(self, batch: Any) -> int:
        """Samples."""
        return len(batch[1])

    def loss(self, model: nn.Module, batch: Any) -> LossOutput:
        """Cross entropy, halved where it is large."""
        total = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return LossOutput(total * 0.5 if total.item() > 100 else total)


class OddOptimizer(torch.optim.SGD):
    """Keeps three numbers for each parameter, and reads a gradient's value."""

    def step(self, closure: Any = None) -> Any:
        """Note the norm of each gradient three times."""
        for group in self.param_groups:
            for parameter in group["params"]:
                norm = parameter.grad.norm().item()
                self.state[parameter]["norms"] = torch.full((3,), norm)
        return super().step(closure)


class WithScalar(Layers):
    """One parameter is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scaled scores."""
        return super().forward(inputs) * self.scale
