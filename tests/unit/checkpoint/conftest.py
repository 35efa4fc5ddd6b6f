"""Warm up what torch does on first use; hide a launcher's variables; the places of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo  # optimizers import it on their first step; forked ranks then have it already
from checkpoint_places import DirectoryPlace, MemoryPlace, Place, memory_registered

# Its first step and the first compiled call set a variable of torch's own.
_weight = torch.nn.Parameter(torch.zeros(1))
_weight.grad = torch.zeros(1)
torch.optim.SGD([_weight]).step()
torch.compile(torch.nn.Identity(), backend="eager")(_weight)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DIST_TRAIN_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A directory, and a third party's storage that is found by its URL."""
    if request.param == "file":
        yield DirectoryPlace(tmp_path / "checkpoints")
        return
    with pytest.MonkeyPatch.context() as patch, memory_registered(patch):
        yield MemoryPlace("memory://run")
