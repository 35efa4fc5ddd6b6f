"""The RNG state of a rank: seeded for the model, and then for the training."""

from __future__ import annotations

from dist_train.distributed.seeding import derive, seed_all

_MODEL = 0x6D6F64656C


def seed_for_model(seed: int) -> None:
    """Seed alike on every rank, to draw the parameters; other numbers than those of the training."""
    seed_all(derive(seed, _MODEL) >> 1, 0)


def seed_for_training(seed: int, rank: int) -> None:
    """Seed each rank differently: dropout differs between ranks."""
    seed_all(seed, rank)
