"""Read an iterable data set step by step: the whole job's samples in, this rank's micro-batches out."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from dist_train.data.batch_partition import BatchPartition
from dist_train.data.random_keys import derive_key
from dist_train.data.reading.sample_reader import Collate
from dist_train.data.reading.sample_rng import global_rng_kept, seed_global_rng
from dist_train.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)
_LARGE_BYTES = 1 << 20


class StepRead(NamedTuple):
    """One optimizer step, read: this rank's micro-batches and what all ranks compare."""

    batches: list[Any]
    counts: list[int]
    step_count: int
    first_hash: str
    dataset_state: bytes | None  # pickled, since a worker's queue would pickle it later, when it has changed


@dataclass(frozen=True)
class StreamStart:
    """Where reading begins.

    Args:
        dataset_state: the data set's own state, or its iterator's, at `step`; None: samples are read and
            skipped.
    """

    epoch: int
    step: int
    dataset_state: bytes | None = None


class StepReader(IterableDataset[StepRead]):
    """The steps of an epoch from `start` on, as DataLoader reads them in this process or in one worker.

    Random draws of the data set are keyed by (seed, epoch, step), those of `collate_fn` also by the rank's
    first sample; in the main process the training's RNG state stays as it is.

    Args:
        dataset: an IterableDataset.
        batch_size: samples per step of the whole job.
        drop_last: leave out a last step with fewer samples.
        hash_sample: applied to the first sample of each step.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        rank: int,
        world_size: int,
        accumulate: int,
        collate_fn: Collate | None,
        drop_last: bool,
        seed: int,
        dataset_id: str,
        start: StreamStart,
        hash_sample: Callable[[Any], str],
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.accumulate = accumulate
        self.collate: Collate = collate_fn or default_collate
        self.least = batch_size if drop_last else 1
        self.collate_draws = collate_fn is not None
        self.start = start
        self.hash_sample = hash_sample
        self._sample_key = derive_key("stream", seed, start.epoch, dataset_id)
        self._collate_key = derive_key("collate", seed, start.epoch, dataset_id)

    def __iter__(self) -> Iterator[StepRead]:
        _refuse_several_workers()
        dataset, step = _own_copy(self.dataset), self.start.step
        with global_rng_kept():
            samples = self._opened(dataset)
        while True:
            with global_rng_kept():
                seed_global_rng(self._sample_key, step)
                taken = list(islice(samples, self.batch_size))
                enough = len(taken) >= self.least
                read = self._read(step, taken, state_of(dataset, samples)) if enough else None
            if read is not None:
                yield read
            if len(taken) < self.batch_size:
                return
            step += 1

    def _opened(self, dataset: Any) -> Iterator[Any]:
        seed_global_rng(self._sample_key, 0)
        set_epoch = getattr(dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self.start.epoch)
        samples: Any = iter(dataset)
        if self.start.dataset_state is None:
            self._skip(samples)
            return cast(Iterator[Any], samples)
        holder = samples if keeps_state(samples) else dataset
        holder.load_state_dict(pickle.loads(self.start.dataset_state))
        return cast(Iterator[Any], samples if holder is samples else iter(dataset))

    def _skip(self, samples: Iterator[Any]) -> None:
        for step in range(self.start.step):
            seed_global_rng(self._sample_key, step)
            skipped = sum(1 for _ in islice(samples, self.batch_size))
            if skipped < self.batch_size and step < self.start.step - 1:
                raise CheckpointError(
                    f"the stream ends after {step * self.batch_size + skipped} samples of epoch "
                    f"{self.start.epoch}; {self.start.step} steps of {self.batch_size} were trained",
                    cause="it has fewer samples than when the position was saved",
                    hint="give the data set that the checkpoint was made with",
                )

    def _read(self, step: int, taken: list[Any], state: bytes | None) -> StepRead:
        partition = self._whole if len(taken) == self.batch_size else self._partition(len(taken))
        infos = list(partition.micro_batches(0))
        batches = []
        for ids in partition.sample_ids(_in_order, 0):
            if self.collate_draws:
                seed_global_rng(self._collate_key, step * self.batch_size + ids[0])
            batches.append(self.collate([taken[at] for at in ids]))
        counts = [info.count for info in infos]
        return StepRead(batches, counts, len(taken), self.hash_sample(taken[0]), state)

    @cached_property
    def _whole(self) -> BatchPartition:
        return self._partition(self.batch_size)

    def _partition(self, samples: int) -> BatchPartition:
        return BatchPartition(samples, self.batch_size, self.rank, self.world_size, self.accumulate)


def state_of(dataset: Any, samples: Any) -> bytes | None:
    """The state of the iterator, else of the data set, as StatefulDataLoader takes it; None without one."""
    holder = next((holder for holder in (samples, dataset) if keeps_state(holder)), None)
    return None if holder is None else pickle.dumps(holder.state_dict())


def keeps_state(holder: Any) -> bool:
    """Whether it has `state_dict` and `load_state_dict`."""
    return callable(getattr(holder, "state_dict", None)) and callable(
        getattr(holder, "load_state_dict", None)
    )


def _own_copy(dataset: Any) -> Any:
    """A copy of a data set that keeps its position in itself, as a worker has one: every epoch begins alike.

    What cannot be copied is read itself; large arrays are shared.
    """
    if get_worker_info() is not None or not keeps_state(dataset):
        return dataset
    large = [value for value in vars(dataset).values() if getattr(value, "nbytes", 0) > _LARGE_BYTES]
    try:
        return copy.deepcopy(dataset, {id(value): value for value in large})
    except Exception as error:
        logger.debug("%s cannot be copied: %s", type(dataset).__name__, error)
        return dataset


def _in_order(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


def _refuse_several_workers() -> None:
    info = get_worker_info()
    if info is not None and info.num_workers != 1:
        raise ConfigError(
            f"a stream was given to {info.num_workers} loader workers",
            cause="each of them would read all of it",
            hint="give the data set to dt.loader, which reads it in one worker",
        )
