"""Where a rank stands in the job's mesh, and which share of the data is its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
        sizes = [size for _, size in self.mesh]
        if not all(type(count) is int for count in (self.data_rank, self.data_size, *sizes)):
            raise _wrong(f"the place {self} has a size or a coordinate that is not a whole number")
        if not 0 <= self.data_rank < self.data_size:
            raise _wrong(
                f"data coordinate {self.data_rank} of {self.data_size}", "coordinates are counted from 0"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks in the mesh."""
        return prod(size for _, size in self.mesh)

    @classmethod
    def of_replica(cls, rank: int, world_size: int) -> Place:
        """Every rank has the whole model and data of its own."""
        return cls((("replicate", world_size),), rank, world_size)


def check_together(places: Sequence[Place]) -> None:
    """Check that the places of all ranks, in their order, fit together: each sample is read, and counts once.

    Raises:
        ConfigError: naming a rank.
    """
    first = places[0]
    for rank, place in enumerate(places):
        if (place.mesh, place.data_size) != (first.mesh, first.data_size):
            raise _wrong(
                f"the ranks have unlike meshes: rank {rank} has {place.mesh} and {place.data_size} shares of "
                f"the data, rank 0 {first.mesh} and {first.data_size}"
            )
    counting = Counter(place.data_rank for place in places if place.counts)
    for share in range(first.data_size):
        if counting[share] != 1:
            raise _wrong(
                f"{counting[share]} of {len(places)} ranks count for share {share} of {first.data_size} of "
                "the data",
                "one rank speaks for each: a share without a rank is never read, one with two counts twice",
            )


def _wrong(what: str, cause: str | None = None) -> ConfigError:
    return ConfigError(what, cause=cause, hint="correct `place` of the strategy")
