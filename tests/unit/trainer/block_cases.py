"""A small model of blocks with dropout and running statistics, its config, and what a run of it ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dist_train as dt
from dist_train.config.load import load_text
from dist_train.config.schema import RunConfig
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.trainer.run_training import train

BLOCKS = """
seed: 1
model: block_cases:Net
data: {train: {target: nonfinite_cases:Line}, batch_size: 7}
loss: torch.nn.functional:mse_loss
optimizer: {target: torch.optim:AdamW, args: {lr: 0.05}}
trainer: {epochs: 1, log_every_steps: 1, clip_norm: 1.0, accumulate: 2}
checkpoint: {every_steps: 2}
"""


class Block(nn.Module):
    """What activation checkpointing may get wrong: dropout, and statistics that each forward changes."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(width, width), nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.drop(torch.tanh(self.norm(self.inner(x))))
        return out


class Net(nn.Module):
    """Two blocks between two layers."""

    def __init__(self, width: int = 6, norm: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList([Block(width, norm) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.last(x)
        return out


def config(*changes: str, text: str = BLOCKS) -> RunConfig:
    return load_text(text, "run.yaml", changes).config


def trained(folder: Path, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """On each rank: losses of its steps and hashes at the end; `fault` where one was injected."""
    with dt.init(seed=1, timeout_s=60) as run:
        try:
            result = train(config(*changes), run, RunDir(folder))
        except InjectedFault:
            return {"fault": True}
    if result is None:
        return {}
    steps = [one for one in read_metrics(RunDir(folder).metrics) if one["kind"] == "train"]
    return {
        "losses": [one["loss"] for one in steps],
        "weights": result.weights_hash,
        "state": result.state_hash,
        "steps": steps,
    }


def plain() -> nn.Module:
    """The same without dropout: its losses do not depend on how ranks share the data."""
    model = Net()
    for layer in model.layers:
        layer.drop = nn.Identity()
    return model
