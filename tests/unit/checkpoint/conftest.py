"""What torch does on first use is done here, once; no test sees a launcher's variables."""

from __future__ import annotations

import os

import pytest
import torch
import torch._dynamo  # optimizers import it on their first step; forked ranks then have it already

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
