"""Lines on rank 0's console: what is trained, the resumed step, an early end."""

from __future__ import annotations

import torch
import torch.distributed as torch_dist

from dist_train.config.schema import RunConfig
from dist_train.distributed.place import Place
from dist_train.rundir.display_number import display_number
from dist_train.trainer.training_position import Horizon, Position


def start_line(
    config: RunConfig, name: str, strategy: str, horizon: Horizon, place: Place, device: torch.device
) -> str:
    """`training digits: 1438 samples, 10 epochs, batch 64 = 4 ranks x 16 x 1, ddp on cpu (gloo), seed 0`.

    Where several ranks read the same data, they are a group: `batch 64 = 2 groups of 2 ranks x 32 x 1`.
    """
    trainer = config.trainer
    length = _plural(trainer.epochs, "epoch") if trainer.epochs else _plural(trainer.steps or 0, "step")
    batch = batch_split(horizon.batch_size, place.data_size, trainer.accumulate, place.world_size)
    return (
        f"training {name}: {_plural(horizon.samples, 'sample')}, {length}, {batch}, "
        f"{strategy} on {_place(device)}, seed {config.seed}"
    )


def batch_split(batch_size: int, data_size: int, accumulate: int, world_size: int) -> str:
    """`batch 64 = 4 ranks x 16 x 1`: ranks x samples per micro-batch x micro-batches (a range if uneven)."""
    parts = data_size * accumulate
    low, high = batch_size // parts, -(-batch_size // parts)
    samples = str(low) if low == high else f"{low}-{high}"
    ranks = _plural(world_size, "rank")
    if data_size != world_size:
        ranks = f"{_plural(data_size, 'group')} of {_plural(world_size // data_size, 'rank')}"
    return f"batch {batch_size} = {ranks} x {samples} x {accumulate}"


def resume_line(at: Position) -> str:
    """`resumed from step 42 (epoch 2, sample 896)`."""
    return f"resumed from step {at.step} (epoch {display_number(at.epoch)}, sample {at.samples_in_epoch})"


def early_end_line(step: int, reason: str) -> str:
    """`ended early at step 92: EarlyStopping: loss has not improved in 3 evaluations (best: …)`."""
    return f"ended early at step {step}: {reason}"


def _place(device: torch.device) -> str:
    if not torch_dist.is_initialized():
        return device.type
    return f"{device.type} ({'nccl' if device.type == 'cuda' else 'gloo'})"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
