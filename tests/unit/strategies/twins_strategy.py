"""A strategy that gives two neighbouring ranks the same data."""

from __future__ import annotations

from dist_train.distributed.place import Place
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.ddp import Ddp


class Twins(Ddp):
    """Every two neighbouring ranks have the same data, as two ranks of one tensor-parallel pair do."""

    name = "twins"

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        if world_size == 1:
            return Place.of_replica(0, 1)
        mesh = (("replicate", world_size // 2), ("twin", 2))
        return Place(mesh, rank // 2, world_size // 2, counts=rank % 2 == 0)
