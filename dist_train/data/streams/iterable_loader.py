"""Batches of an `IterableDataset`: every rank reads the whole stream and takes its samples of each step."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from dist_train.data.batch_partition import MicroBatch
from dist_train.data.dataset_fingerprint import fingerprint, refuse_other_data, whole_number
from dist_train.data.permutation import PERMUTATION_VERSION
from dist_train.data.random_keys import derive_key
from dist_train.data.reading.sample_reader import Collate
from dist_train.data.streams.stream_agreement import agreed_steps, hash_of_sample
from dist_train.data.streams.stream_steps import StepRead, StepReader, StreamStart
from dist_train.data.streams.torch_stream import TorchStream
from dist_train.data.training_loader import TrainingLoader
from dist_train.data.validation import check_count, id_of
from dist_train.distributed.control_group import Control
from dist_train.distributed.devices import as_device
from dist_train.distributed.gradient_weights.batch_weight import BatchWeight
from dist_train.distributed.place import Place
from dist_train.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)


class IterableLoader(TrainingLoader):
    """Batches of one rank from an iterable data set, in the stream's own order; used as an ExactLoader.

    Every rank reads the whole stream. Sample i of it belongs to step i // batch_size, there
    q = i % batch_size to rank q % world_size: each sample once, at any world size, and the last step may be
    smaller. The price is that reading does not get faster with more ranks (`ShardedStream` does).

    The ranks compare what they have read, before they train on it: order, content (a hash of each step's
    first sample) and end. Streams that differ are refused on all ranks at the same step.

    A resume lets a data set that has `state_dict` and `load_state_dict` (or whose iterator has them, as
    StatefulDataLoader's protocol says) go on by itself; what it does not keep is not kept. Any other stream
    is read and skipped up to the position.

    Args:
        dataset: an IterableDataset, the same on all ranks; `set_epoch(epoch)` is called before each epoch
            if it has that.
        batch_size: samples per optimizer step over all ranks.
        control: all ranks; None for one process.
        place: whose share of each step is read; default this rank's own.
        seed: keys the random draws of the data set, 0 <= seed < 2**128.
        workers: 0 reads in this process; from 1 up, one worker per rank reads.
        accumulate: micro-batches per optimizer step and rank: so many plain batches per step;
            `step_complete` is True in the last of them.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: as DataLoader's.
        dataset_id: identifies the data set; default the data set's own `dataset_id`, else "".
        batch_weight: set for each batch of a plain loop.
        worker_init_fn: as DataLoader's.
        multiprocessing_context: how the worker starts.
        drop_last: leave out the last step of an epoch where it has fewer than `batch_size` samples.
        device: a GPU to which batches are copied ahead.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        control: Control | None = None,
        place: Place | None = None,
        seed: int = 0,
        workers: int = 0,
        accumulate: int = 1,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        dataset_id: str | None = None,
        batch_weight: BatchWeight | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str = "fork",
        device: torch.device | str | None = None,
        drop_last: bool = False,
    ) -> None:
        check_count("batch_size", batch_size, 1)
        check_count("workers", workers, 0)
        self.control = Control() if control is None else control
        super().__init__(accumulate, batch_weight, self.control.is_main)
        self._place = Place.of_replica(self.control.rank, self.control.world_size) if place is None else place
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.workers = min(workers, 1)
        self.collate_fn = collate_fn
        self.dataset_id = id_of(dataset, dataset_id)
        self.drop_last = drop_last
        self._torch_stream = TorchStream(
            self.workers,
            pin_memory,
            worker_init_fn,
            multiprocessing_context,
            None if device is None else as_device(device),
        )
        self._length = _length_of(dataset)
        self._samples = 0
        self._ended = False
        self._dataset_state: bytes | None = None
        derive_key("stream", seed, 0, self.dataset_id)  # refuses a seed out of range here
        self._log_reading(workers)

    @property
    def n(self) -> int:
        """Samples per epoch, from the data set's `__len__`.

        Raises:
            ConfigError: it has none.
        """
        if self._length is None:
            raise ConfigError(
                f"{type(self.dataset).__name__} has no length",
                cause="the number of samples per epoch gives the number of steps",
                hint="give the data set a __len__, or put its samples into shards and use ShardedStream",
            )
        return self._length

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; TypeError if the data set has no length."""
        if self._length is None:
            raise TypeError(f"{type(self.dataset).__name__} has no __len__: its steps are not known ahead")
        return -(-self.samples_per_epoch // self.batch_size)

    @property
    def samples_per_epoch(self) -> int:
        """Samples of an epoch over all ranks: `n` less those that `drop_last` leaves out."""
        return self.n - self.n % self.batch_size if self.drop_last else self.n

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this epoch that the whole job has trained on, the current step's included."""
        return self._samples

    def close(self) -> None:
        """Do nothing: the worker ends with its epoch."""

    def _read_micro_batches(self) -> Iterator[MicroBatch]:
        """Collective at its begin and once per STEPS_COMPARED steps."""
        iteration = self._iteration = object()
        if self._ended:
            # Nothing is left of this epoch: what a loop does at an epoch's end is due now.
            self._next_epoch()
            return
        key = derive_key("workers", self.seed, self._epoch, self.dataset_id)
        with self._torch_stream.open(self._reader(), key) as steps:
            for read in agreed_steps(steps, self.control, (self._epoch, self._step)):
                for micro_batch in self._micro_batches_of(read):
                    yield micro_batch
                    self._refuse_other_iteration(iteration)
        self._check_end()
        self._next_epoch()

    def seek(self, epoch: int, samples_in_epoch: int) -> None:
        """Go to a position between two optimizer steps; the next iteration reads and skips up to it.

        Raises:
            CheckpointError: it lies within a step, or beyond the epoch.
        """
        at_end = samples_in_epoch == self._expected
        if epoch < 0 or samples_in_epoch < 0 or samples_in_epoch > (self._length or samples_in_epoch):
            raise CheckpointError(
                f"position {samples_in_epoch} of epoch {epoch} does not exist in {self._length} samples",
                hint="give the dataset that the position was counted in",
            )
        if samples_in_epoch % self.batch_size and not at_end:
            raise CheckpointError(
                f"position {samples_in_epoch} is not a multiple of batch_size {self.batch_size}",
                cause="it was saved with another batch_size, in the middle of what is now one step",
                hint="go on with the batch_size of the checkpoint, at least to the end of its epoch",
            )
        self._go_to(epoch, samples_in_epoch, ended=at_end)
        self._samples_before = epoch * (self._length or 0)

    def sample_ids(self, epoch: int, step: int, ranks: Collection[int] = ()) -> list[int]:
        """The samples of one optimizer step by their place in the stream: for a message about it.

        Args:
            step: of its epoch, from 0.
            ranks: only the samples of these data coordinates; empty: those of the whole job.
        """
        world_size = self._place.data_size
        chosen = ranks or range(world_size)
        return [step * self.batch_size + q for q in range(self.batch_size) if q % world_size in chosen]

    def state_dict(self) -> dict[str, Any]:
        """The position, the data that it refers to, and the data set's own state if it has one.

        Independent of the world size: every rank reads the whole stream.

        Raises:
            UsageError: a plain loop has read batches ahead of the one that it trains on.
        """
        self._refuse_position_ahead()
        state = {
            "epoch": self._epoch,
            "samples_in_epoch": self._samples,
            "samples_total": self._samples_before + self._samples,
            "batch_size": self.batch_size,
            "ended": self._ended,
            **self._identity(),
        }
        if self._dataset_state is not None:
            state["dataset_state"] = pickle.loads(self._dataset_state)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, also one written at another world size.

        Raises:
            CheckpointError: it belongs to other data, another seed, or another batch_size in the middle of an
                epoch.
        """
        refuse_other_data(state, self._identity())
        epoch, samples = whole_number(state, "epoch"), whole_number(state, "samples_in_epoch")
        saved, ended = whole_number(state, "batch_size"), bool(state.get("ended"))
        if samples and not ended and saved != self.batch_size:
            raise CheckpointError(
                f"batch_size was {saved} at the save and is {self.batch_size} now",
                cause="random draws of a stream are keyed by its steps",
                hint=f"go on with batch_size {saved}, or change it at an epoch's end",
            )
        own = state.get("dataset_state")
        self._go_to(epoch, samples, ended, None if own is None else pickle.dumps(own))
        self._samples_before = whole_number(state, "samples_total") - samples
        if self.control.is_main and samples and not ended:
            if own is None:
                logger.info("the stream is read again and its first %d samples are skipped", samples)
            else:
                logger.warning(
                    "%s goes on from its own state_dict; what that does not hold (such as a shuffle buffer) "
                    "is not restored",
                    type(self.dataset).__name__,
                )

    def _go_to(self, epoch: int, samples: int, ended: bool, dataset_state: bytes | None = None) -> None:
        self._iteration = object()
        self._epoch = epoch
        self._samples = samples
        self._step = -(-samples // self.batch_size)
        self._ended = ended
        self._dataset_state = dataset_state

    def _next_epoch(self) -> None:
        before = self._samples_before + self._samples
        self._go_to(self._epoch + 1, 0, ended=False)
        self._samples_before = before

    @property
    def _expected(self) -> int | None:
        return None if self._length is None else self.samples_per_epoch

    def _identity(self) -> dict[str, Any]:
        return {
            "n": self._length,
            "seed": self.seed,
            "shuffle": False,
            "dataset_id": self.dataset_id,
            "permutation_version": PERMUTATION_VERSION,
            "fingerprint": fingerprint(self._length or 0, self.dataset_id),
        }

    def _micro_batches_of(self, read: StepRead) -> Iterator[MicroBatch]:
        done, step = self._samples + read.step_count, self._step
        for micro, (batch, count) in enumerate(zip(read.batches, read.counts, strict=True)):
            self._step_complete = micro == self.accumulate - 1
            if self._step_complete:
                self._step, self._samples, self._dataset_state = step + 1, done, read.dataset_state
                self._ended = read.step_count < self.batch_size or done == self._expected
            yield MicroBatch(batch, count, read.step_count, step, micro, self.accumulate, done)

    def _reader(self) -> StepReader:
        return StepReader(
            self.dataset,
            self.batch_size,
            self._place.data_rank,
            self._place.data_size,
            self.accumulate,
            self.collate_fn,
            self.drop_last,
            self.seed,
            self.dataset_id,
            StreamStart(self._epoch, self._step, self._dataset_state),
            hash_of_sample if self.control.world_size > 1 else _no_hash,
        )

    def _check_end(self) -> None:
        if self._samples == 0:
            raise ConfigError(
                f"{type(self.dataset).__name__} gave no sample in epoch {self._epoch}",
                cause="it is empty, or can be iterated only once",
                hint="let __iter__ begin again at each call",
            )
        if self._length is not None and self._samples != self._expected:
            raise ConfigError(
                f"{type(self.dataset).__name__} gave {self._samples} samples in epoch {self._epoch}, and its "
                f"length is {self._length}",
                cause="steps and schedules were counted from __len__",
                hint="correct __len__, or remove it",
            )

    def _log_reading(self, workers: int) -> None:
        if not self.control.is_main:
            return
        if self.control.world_size > 1:
            logger.info(
                "%s has no items by index: each of %d ranks reads all of it and takes its samples "
                "(dist_train.data.ShardedStream: each rank reads its own shards)",
                type(self.dataset).__name__,
                self.control.world_size,
            )
        if workers > 1:
            logger.info("workers=%d: a stream is read in order, by one worker per rank", workers)


def refuse_map_style_options(**options: object) -> None:
    """Check that an iterable data set has none of the options of `dt.loader` that need items by index.

    Raises:
        ConfigError: one is set.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError(
            f"dt.loader of an IterableDataset does not take {', '.join(given)}",
            cause="a stream has its own order, one worker per rank reads it, and it has no items by index",
            hint=f"remove {given[0]}, or give a map-style data set or a dist_train.data.ShardedStream",
        )


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _no_hash(_sample: Any) -> str:
    return ""
