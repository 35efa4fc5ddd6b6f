"""Where a rank stands in the job's mesh, and which share of the data is its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from dist_train.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """A rank's place, as its strategy chooses it: a pure function of options, world size and rank.

    Ranks that hold parts of one copy of the model read the same data, draw the same random numbers and see
    the same loss: they have one data coordinate.

    Args:
        mesh: names and sizes of the dimensions, the slowest first: `(("shard", 2), ("tp", 2))`.
        data_rank: this rank's data coordinate: its share of the samples and its random numbers.
        data_size: number of data coordinates.
        counts: this rank speaks for its coordinate: one rank of each adds losses, units and rows up.
    """

    mesh: tuple[tuple[str, int], ...]
    data_rank: int
    data_size: int
    counts: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.data_rank < self.data_size:
            raise ConfigError(
                f"data coordinate {self.data_rank} of {self.data_size}",
                cause="coordinates are counted from 0",
                hint="correct `place` of the strategy",
            )

    @property
    def world_size(self) -> int:
        """Number of ranks in the mesh."""
        return prod(size for _, size in self.mesh)

    @classmethod
    def of_replica(cls, rank: int, world_size: int) -> Place:
        """Every rank has the whole model and data of its own."""
        return cls((("replicate", world_size),), rank, world_size)
