"""What is in golden_v1/ and golden_v2/. Version 1 was written when it was fixed, and never again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_train.checkpoint.manager import CheckpointManager

HERE = Path(__file__).parent
STEP = 7


class Golden(nn.Module):
    """Tied weights, a buffer, one bfloat16 parameter; no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.emb.weight
        self.gain = nn.Parameter(torch.tensor([0.5, -2.0], dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(41))


def golden_state(filled: bool) -> dict[str, Any]:
    """The state in the golden checkpoint, or one of the same form with other values."""
    model = Golden()
    with torch.no_grad():
        model.emb.weight.copy_(torch.arange(6.0).reshape(3, 2) / 8 if filled else torch.zeros(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125 if filled else 1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    state["notes"] = {"best": float("inf"), "pair": (1, "two"), "by": {3: None}} if filled else None
    if filled:
        for number, parameter in enumerate(model.parameters(), start=1):
            parameter.grad = torch.full_like(parameter, number / 4)
        optimizer.step()
        schedule.step()
    return state


def write_golden(directory: Path) -> None:
    """Save it there, in the version of today."""
    data = {
        "n": 20,
        "fingerprint": "00" * 16,
        "seed": 3,
        "dataset_id": "golden",
        "permutation_version": 1,
        "batch_size": 4,
    }
    facts: dict[str, Any] = {"device": "cpu", "threads_per_rank": 1, "torch": "2.13.0"}
    manager = CheckpointManager(
        directory, run_id="golden", attempt=1, config_xxh3="ab" * 16, strategy="ddp", determinism=facts
    )
    manager.save(
        STEP, golden_state(True), data=data, epoch=1, samples_in_epoch=8, samples_total=28, score=0.25
    )


if __name__ == "__main__":
    write_golden(HERE / "golden_v2")
