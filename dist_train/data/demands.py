"""What a loader needs of its arguments, said before the first batch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from dist_train.errors import ConfigError


def length_of(dataset: Any) -> int:
    """Number of samples of a map-style dataset.

    Raises:
        ConfigError: it has no length, no items by index, or is empty.
    """
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{name} gives no samples by index",
            cause="an exact epoch asks for samples by index",
            mend="give a map-style dataset (__len__ and __getitem__), not an iterable one or a DataLoader",
        )
    try:
        n = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"{name} has no length",
            cause="an epoch's order is a permutation of 0 .. N-1, so N must be known",
            mend="give the dataset a __len__",
        ) from error
    if n < 1:
        raise ConfigError(f"{name} is empty", mend="check the path and the filter that it was made with")
    return n


def demand_count(name: str, value: int, least: int) -> None:
    """A whole number that is not smaller than `least`.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name}={value!r} is not a whole number from {least} up", mend=f"set {name} to {least} or more"
        )
