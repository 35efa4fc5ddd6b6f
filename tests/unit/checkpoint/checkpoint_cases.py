"""A tiny training whose state has every kind of value: tied weights, buffers, optimizer, schedule, loader."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.checkpoint_names import read_manifest
from dist_train.checkpoint.store.file import FileStorage
from dist_train.rundir.step_names import step_name

Make = Callable[[Any], torch.optim.Optimizer]


class Tied(nn.Module):
    """Tied weights, BatchNorm (buffers), dropout (random numbers), a buffer outside state_dict."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 6, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("seen", torch.zeros(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.head(self.drop(self.norm(self.emb(ids))))


class Loader:
    """What a loader's state_dict looks like."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        identity = {"n": 100, "fingerprint": "f", "seed": 5, "dataset_id": "d", "permutation_version": 1}
        return {**identity, "batch_size": 4, "epoch": self.at // 100, "samples_in_epoch": self.at % 100}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = 100 * state["epoch"] + state["samples_in_epoch"]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


class Training:
    """`train(n)` makes n steps that depend on every part of `state` and on all RNG state."""

    def __init__(self, make: Make = adamw, seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = Tied()
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], gamma=0.5)
        self.loader = Loader()
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loader": self.loader,
        }

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            noise = random.random() + float(np.random.rand())
            loss = (self.model(torch.randint(6, (5,))) * noise).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.loader.at += 4

    def weights(self) -> str:
        return weights_hash(self.model.state_dict())


def manager(location: str | Path, attempt: int = 0, **options: Any) -> CheckpointManager:
    """A manager whose attempt has a number, as under our agent."""
    return CheckpointManager(location, run_id="run", attempt=attempt, **options)


def manifest_of(directory: Path, step: int) -> Manifest:
    """The manifest of one step."""
    return read_manifest(FileStorage(directory), step_name(step))


def saved_run(location: str | Path, steps: int = 2, **options: Any) -> dict[int, str]:
    """Train and save at every step; step -> weights_hash."""
    training, manage = Training(), manager(location, **options)
    hashes = {}
    for step in range(1, steps + 1):
        training.train()
        hashes[step] = manage.save(step, training.state).weights_hash
    return hashes
