"""Draw one epoch of a torch sampler, an object with `set_epoch`, or a function of (seed, epoch)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dist_train.data.random_keys import word_at
from dist_train.data.reading.sample_rng import global_rng_kept, seed_global_rng
from dist_train.errors import ConfigError

# Ids, and the sizes of the batches they came in.
Epoch = tuple[NDArray[np.int64], NDArray[np.int64] | None]
_PURE = (
    "draw from torch's, numpy's or Python's global generator or from self.generator (all are keyed by seed\n"
    "       and epoch), follow set_epoch(epoch), or give a function: sampler=lambda seed, epoch: ids"
)


def refuse_part_of_an_epoch(source: Any) -> None:
    """Refuse what gives one rank's samples only, or can be read only once.

    Raises:
        ConfigError: a distributed sampler, an iterator, or nothing that can be iterated or called.
    """
    name = type(source).__name__
    for part in _nested(source):
        if hasattr(part, "num_replicas"):
            raise ConfigError(
                f"{type(part).__name__} gives one rank's part of an epoch",
                cause="the loader itself divides each step over the ranks, so it needs the whole epoch",
                hint="give the sampler of a single process; for a plain shuffle give none",
            )
    if isinstance(source, Iterator):
        raise ConfigError(
            f"the sampler is an iterator ({name}), which can be read once only",
            cause="an epoch is drawn again after a restart",
            hint="give an object with __iter__ (a list, a torch Sampler), or a function of (seed, epoch)",
        )
    if not callable(source) and not hasattr(source, "__iter__"):
        raise ConfigError(f"a sampler of type {name} can be neither iterated nor called", hint=_PURE)


def drawn_twice(
    read: Callable[[Iterable[Any]], Epoch], source: Any, seed: int, epoch: int, key: int, *, times: int
) -> Epoch:
    """Draw an epoch `times` times from the same keys.

    Raises:
        ConfigError: two draws differ: the order is no function of (seed, epoch).
    """
    first, *others = [_drawn(read, source, seed, epoch, key) for _ in range(times)]
    for other in others:
        if not all(map(_same, first, other)):
            raise ConfigError(
                f"{type(source).__name__} gave two orders for one seed and epoch",
                cause="it keeps a random state of its own, so ranks and restarts would read other samples",
                hint=_PURE,
            )
    return first


def ids_of(items: Iterable[Any], dataset_size: int) -> Epoch:
    """Sample ids as an array."""
    ids = _whole_numbers(items, dataset_size)
    _refuse_outside(ids, dataset_size)
    return ids, None


def batches_of(items: Iterable[Any], dataset_size: int) -> Epoch:
    """Sample ids as an array, and the size of each batch."""
    batches = [_whole_numbers(batch, dataset_size) for batch in _bounded(items, dataset_size)]
    sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
    if len(sizes) == 0 or sizes.min() < 1:
        raise ConfigError(
            "the batch sampler gave no batches"
            if len(sizes) == 0
            else "the batch sampler gave an empty batch",
            cause="each batch is the optimizer step of the whole job",
            hint="give lists of sample ids",
        )
    ids = np.concatenate(batches)
    _refuse_outside(ids, dataset_size)
    return ids, sizes


def _same(one: NDArray[np.int64] | None, other: NDArray[np.int64] | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def _drawn(read: Callable[[Iterable[Any]], Epoch], source: Any, seed: int, epoch: int, key: int) -> Epoch:
    with global_rng_kept(), _generators_keyed(source, key):
        seed_global_rng(key, 0)
        for part in _nested(source):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        return read(source if hasattr(source, "__iter__") else source(seed, epoch))


@contextmanager
def _generators_keyed(source: Any, key: int) -> Iterator[None]:
    """Give torch's samplers, which draw from `self.generator`, one that is keyed."""
    before: list[tuple[Any, torch.Generator | None]] = []
    try:
        for index, part in enumerate(_nested(source)):
            generator = getattr(part, "generator", part)
            if generator is None or isinstance(generator, torch.Generator):
                part.generator = torch.Generator().manual_seed(word_at(key, index + 1) >> 1)
                before.append((part, generator))
        yield
    finally:
        for part, generator in before:
            part.generator = generator


def _nested(source: Any) -> list[Any]:
    """The source and the samplers that it wraps, as torch's BatchSampler does."""
    found = [source]
    for part in found:
        inner = [getattr(part, name, None) for name in ("sampler", "batch_sampler")]
        found += [one for one in inner if one is not None and all(one is not other for other in found)]
    return found


def _bounded(items: Iterable[Any], dataset_size: int) -> Iterator[Any]:
    """The items; refuses a sampler that never ends."""
    limit = 1000 * dataset_size + 1_000_000
    announced = _announced(items)
    for count, item in enumerate(items):
        if max(count, announced) > limit:
            raise ConfigError(
                f"the sampler gave {f'{announced} items' if announced else f'more than {limit} items'} for "
                f"{dataset_size} samples",
                cause="an epoch has an end, and is drawn as a whole",
                hint="give a sampler that ends after one epoch, such as RandomSampler(dataset, "
                "replacement=True, num_samples=len(dataset)), and iterate the loader for many epochs",
            )
        yield item


def _announced(items: Iterable[Any]) -> int:
    """The length that a sampler says it has; 0 where it says none, as torch's base class allows."""
    try:
        return len(items) if isinstance(items, Sized) else 0
    except (NotImplementedError, TypeError):
        return 0


def _whole_numbers(items: Any, dataset_size: int) -> NDArray[np.int64]:
    if isinstance(items, torch.Tensor):
        items = items.numpy()
    if isinstance(items, np.ndarray) and items.dtype.kind in "iu" and items.ndim == 1:
        return items.astype(np.int64)
    try:
        return np.fromiter((operator.index(one) for one in _bounded(items, dataset_size)), dtype=np.int64)
    except TypeError as error:
        raise ConfigError(
            f"the sampler gave something that is no sample id: {error}",
            cause="a sampler gives whole numbers, a batch sampler lists of them",
            hint="lists of ids belong to batch_sampler=, ids to sampler=",
        ) from error


def _refuse_outside(ids: NDArray[np.int64], dataset_size: int) -> None:
    if len(ids) == 0:
        raise ConfigError("the sampler gave no samples", hint="check what it selects")
    if ids.min() < 0 or ids.max() >= dataset_size:
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise ConfigError(
            f"the sampler gave sample {wrong} of a data set of {dataset_size}",
            cause=f"sample ids are 0 .. {dataset_size - 1}",
            hint="make the sampler with the data set that the loader reads",
        )
