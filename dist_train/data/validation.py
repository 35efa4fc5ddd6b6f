"""Check a loader's arguments before the first batch."""

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
            hint="give a map-style dataset (__len__ and __getitem__), or an IterableDataset to dt.loader; "
            "not a DataLoader",
        )
    try:
        n = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"{name} has no length",
            cause="an epoch's order is a permutation of 0 .. N-1, so N must be known",
            hint="give the dataset a __len__",
        ) from error
    if n < 1:
        raise ConfigError(f"{name} is empty", hint="check the path and the filter that it was made with")
    return n


def check_count(name: str, value: int | None, least: int) -> int:
    """Return `value` if it is a whole number not smaller than `least`.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name}={value!r} is not a whole number from {least} up", hint=f"set {name} to {least} or more"
        )
    return value


def check_rank(rank: int, world_size: int) -> None:
    """Check that this is a rank of a job of that size.

    Raises:
        ConfigError: it is none.
    """
    check_count("world_size", world_size, 1)
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank {rank} is not in 0 .. {world_size - 1}", hint="give the rank of this process"
        )


def id_of(dataset: Any, given: str | None) -> str:
    """The id of a data set: the one given, else its own `dataset_id`, else empty."""
    return str(getattr(dataset, "dataset_id", "")) if given is None else given


def check_sources(batch_size: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    """Check that batch_size, sampler, batch_sampler and drop_last go together.

    Raises:
        ConfigError: they do not.
    """
    if batch_sampler is None:
        check_count("batch_size", batch_size, 1)
        return
    others = {"batch_size": batch_size, "sampler": sampler, "drop_last": drop_last or None}
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} does not go with batch_sampler",
            cause="a batch sampler gives whole batches: each one the optimizer step of the whole job",
            hint=f"remove {given[0]}",
        )


def check_workers(
    workers: int, persistent_workers: bool | None, prefetch_factor: int | None, timeout: float
) -> None:
    """Check the options of loader processes.

    Raises:
        ConfigError: one is out of range, or is given without workers.
    """
    check_count("workers", workers, 0)
    if prefetch_factor is not None:
        check_count("prefetch_factor", prefetch_factor, 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise ConfigError(f"timeout={timeout!r} is no number of seconds", hint="0 waits for ever")
    options = {"persistent_workers": persistent_workers, "prefetch_factor": prefetch_factor}
    given = [name for name, value in {**options, "timeout": timeout}.items() if value]
    if given and not workers:
        raise ConfigError(
            f"{given[0]}={({**options, 'timeout': timeout})[given[0]]!r} has no effect without workers",
            hint=f"workers=2, or remove {given[0]}",
        )
