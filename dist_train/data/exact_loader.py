"""The exact loader: every sample once per epoch at any world size, resumable at the trained position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dist_train.data.batch_partition import BatchPartition, MicroBatch, refuse_no_steps
from dist_train.data.data_agreement import DataAgreement
from dist_train.data.dataset_fingerprint import (
    fingerprint,
    refuse_other_data,
    refuse_other_order,
    refuse_other_steps,
    whole_number,
)
from dist_train.data.epoch_order import SampleSource, orders_of
from dist_train.data.paired_loaders import OrderInUse
from dist_train.data.permutation import PERMUTATION_VERSION
from dist_train.data.reading.dataset_state import UnchangedState, is_stateful, restore_state, saved_state
from dist_train.data.reading.make_torch_loader import make_torch_loader
from dist_train.data.reading.sample_reader import Collate
from dist_train.data.streams.sharded_stream import ShardedStream
from dist_train.data.training_loader import TrainingLoader
from dist_train.data.validation import check_rank, check_sources, id_of, length_of
from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.devices import as_device
from dist_train.distributed.gradient_weights.batch_weight import BatchWeight
from dist_train.distributed.smallest_batch import reading
from dist_train.errors import CheckpointError
from dist_train.rundir.display_number import display_number

logger = logging.getLogger(__name__)


class ExactLoader(TrainingLoader):
    """Batches of one rank. `batch_size` is the samples per optimizer step of the WHOLE job.

    Iterating gives the rest of the current epoch, then the epoch advances by itself: no
    `set_epoch`. Breaking out of a loop and iterating again goes on with the rest of the SAME
    epoch. Inside the loop body the current batch counts as done, so `state_dict()` after
    `optimizer.step()` is the position to resume from; batches that workers have prefetched do not
    count. Resumed at the end of an epoch, the first iteration gives no batch, so that what follows
    the loop over this epoch is run as without the interruption; then comes the next epoch. Nothing is
    padded, and without `drop_last` nothing dropped: `MicroBatch.count` gives the samples of this rank
    in a step, 0 where it has none (in a plain loop the run's `batch_weight` holds it, by which
    `dist_train.prepare` weights gradients).

    Order is a function of (seed, epoch, length, dataset id), or of (seed, epoch) and the sampler. What
    `dataset[i]` and `collate_fn` draw from Python's, numpy's global and torch's CPU generator is keyed
    by (seed, epoch, sample id); the training's own RNG state never changes. Keying costs about 10 us per
    sample: a dataset that draws nothing sets `deterministic_items = True`; TensorDataset need not.
    `__getitems__` is used as long as it draws nothing. A dataset with `state_dict` and
    `load_state_dict` has its state saved with the position.

    Args:
        dataset: map style, with a length; its `dataset_id` and `deterministic_items` are used.
        batch_size: samples per optimizer step over all ranks; None with `batch_sampler`.
        shuffle: False keeps the dataset's order; a sampler has its own.
        seed: 0 <= seed < 2**128, the same on all ranks.
        rank: this process among `world_size`.
        workers: loader processes of this rank.
        accumulate: micro-batches per optimizer step and rank: so many plain batches per step;
            `step_complete` is True in the last of them.
        drop_last: leave out the last step of an epoch where it has fewer than `batch_size` samples.
        sampler: gives the sample ids of a whole epoch: a torch Sampler or any iterable (everything random
            in it is keyed by seed and epoch, `set_epoch` is called), or a function of (seed, epoch).
        batch_sampler: likewise lists of ids, each one optimizer step of the WHOLE job.
        persistent_workers: keep workers between epochs; None: as long as the dataset's attributes and
            collate_fn stay as they are (else new ones get the changed dataset).
        prefetch_factor, timeout: as DataLoader's; a timeout is in seconds, 0 waits for ever.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: as DataLoader's.
        dataset_id: identifies the data set; default the dataset's own `dataset_id`, else "".
        batch_weight: set for each batch of a plain loop.
        worker_init_fn: as DataLoader's.
        multiprocessing_context: how workers start.
        device: a GPU to which each batch is copied while the one before it trains; None, or the CPU:
            batches stay in CPU memory.
        agreement: compares the data with the other ranks' at the start of each iteration.

    Raises:
        ConfigError: the dataset has no length or no items by index, a number is out of range, or the
            sampler is no function of (seed, epoch).
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        accumulate: int = 1,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        dataset_id: str | None = None,
        batch_weight: BatchWeight | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str = "fork",
        device: torch.device | str | None = None,
        agreement: DataAgreement | None = None,
        drop_last: bool = False,
        sampler: SampleSource | None = None,
        batch_sampler: SampleSource | None = None,
        persistent_workers: bool | None = None,
        prefetch_factor: int | None = None,
        timeout: float = 0,
    ) -> None:
        check_sources(batch_size, sampler, batch_sampler, drop_last)
        check_rank(rank, world_size)
        super().__init__(accumulate, batch_weight, rank == 0)
        self.dataset = dataset
        self.n = length_of(dataset)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.workers = workers
        self.dataset_id = id_of(dataset, dataset_id)
        device = None if device is None else as_device(device)
        whole = BatchPartition(self.n, batch_size or self.n, rank, world_size, accumulate, drop_last)
        self._orders = orders_of(dataset, whole, sampler, batch_sampler, seed, self.dataset_id, shuffle)
        # The state of a data set that reading changes can be saved where one process reads, and not ahead.
        copies = workers or world_size > 1 or (device is not None and device.type != "cpu")
        guard = UnchangedState(dataset) if copies and is_stateful(dataset) else None
        self._torch_loader = make_torch_loader(
            dataset,
            seed=seed,
            dataset_id=self.dataset_id,
            rank=rank,
            collate_fn=collate_fn,
            workers=workers,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            pin_memory=pin_memory,
            device=device,
            guard=guard,
        )
        # The next iteration is the empty rest of an epoch that was complete at the save.
        self._resumed_at_end = False
        self._agreement = agreement
        self._orders.order(0)  # refuses a seed out of range here, not at the first batch
        self.batch_size = self._partition.batch_size
        order = (self.n, self.batch_size, seed, self.dataset_id)
        permuted = shuffle and not self._orders.sampled
        if permuted:
            self._order_in_use = OrderInUse(order, dataset_id is not None)
        refuse_no_steps(self._partition)
        if batch_size is not None and batch_size < world_size * accumulate and rank == 0:
            logger.warning(
                "batch_size %s is smaller than %s ranks x %s micro-batches: some of them train on no sample",
                batch_size,
                world_size,
                accumulate,
            )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of this epoch."""
        return self._partition.steps

    @property
    def samples_per_epoch(self) -> int:
        """Samples of this epoch over all ranks: of the dataset, less those dropped, or of the sampler."""
        return self._partition.samples

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this epoch that the whole job has trained on, the current step's included."""
        return self._partition.samples_done(self._step)

    def close(self) -> None:
        """End the workers that wait for the next epoch; the next iteration starts new ones."""
        self._torch_loader.close()

    def _read_micro_batches(self) -> Iterator[MicroBatch]:
        if self._resumed_at_end:
            self._end_resumed_epoch()
            return
        self._advance_epoch()
        iteration = self._iteration = object()
        epoch, partition, summarised = self._epoch, self._partition, self._summarised()
        opened = self._torch_loader.open(partition, self._orders.order(epoch), epoch, self._step, summarised)
        try:
            with opened as batches, reading(partition.read_epoch()) as sizes:
                self._agree(next(batches) if summarised else None)
                for info, batch in zip(partition.micro_batches(self._step), batches, strict=True):
                    sizes.current = max(1, info.count)
                    self._step_complete = info.micro == self.accumulate - 1
                    if self._step_complete:
                        self._step = info.step + 1
                    yield info.with_batch(batch, self.accumulate)
                    self._refuse_other_iteration(iteration)
        finally:
            # The loop is over, by its end or by a break at the last batch: so is the epoch.
            if self._iteration is iteration:
                self._advance_epoch()

    def seek(self, epoch: int, samples_in_epoch: int) -> None:
        """Go to a position in O(1). It must lie between two optimizer steps.

        The position after an epoch's last sample is the end of that epoch: the next iteration gives no
        batch, so that what follows the epoch's loop is run, and the one after it the next epoch.

        Raises:
            CheckpointError: it does not, or it is beyond the epoch.
        """
        self._go_to(epoch, samples_in_epoch, None)

    def _go_to(self, epoch: int, samples_in_epoch: int, samples_before: int | None) -> None:
        partition = self._orders.partition(epoch) if epoch >= 0 else self._partition
        if not (0 <= samples_in_epoch <= partition.n and epoch >= 0):
            raise CheckpointError(
                f"position {samples_in_epoch} of epoch {epoch} does not exist in {partition.n} samples",
                hint="give the dataset that the position was counted in",
            )
        steps = partition.steps_done(samples_in_epoch)
        if steps is None:
            raise CheckpointError(
                f"position {samples_in_epoch} is not a multiple of batch_size {self.batch_size}",
                cause="it was saved with another batch_size, in the middle of what is now one step",
                hint="go on with the batch_size of the checkpoint, at least to the end of its epoch",
            )
        self._iteration = object()
        self._epoch = epoch
        self._step = steps
        self._samples_before = epoch * partition.samples if samples_before is None else samples_before
        self._resumed_at_end = self._step == self.steps_per_epoch

    def sample_ids(self, epoch: int, step: int, ranks: Collection[int] = ()) -> list[int]:
        """The samples of one optimizer step, in its order: for a message about it.

        Args:
            step: of its epoch, from 0.
            ranks: only the samples of these data coordinates; empty: those of the whole job.
        """
        partition = self._orders.partition(epoch)
        q = np.arange(partition.step_count(step), dtype=np.int64)
        if ranks:
            q = q[np.isin(q % self.world_size, list(ranks))]
        return [int(index) for index in self._orders.order(epoch)(partition.samples_done(step) + q)]

    def state_dict(self) -> dict[str, Any]:
        """The position and the data that it refers to, as JSON values; independent of the world size.

        Inside the loop, at the last batch, it is the end of this epoch; after the loop, the start of the
        next one.

        Raises:
            UsageError: a plain loop has read batches ahead of the one that it trains on.
        """
        self._refuse_position_ahead()
        samples, complete = self.samples_in_epoch, self._step == self.steps_per_epoch
        digest = "" if complete else self._orders.digest(self._epoch)
        return {
            "epoch": self._epoch,
            "samples_in_epoch": samples,
            "samples_total": self._samples_before + samples,
            "batch_size": self.batch_size,
            **self._identity(),
            **({"order": digest} if digest else {}),
            **({"epoch_complete": True} if complete else {}),
            **saved_state(self.dataset),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, also one written at another world size.

        Raises:
            CheckpointError: it belongs to other data, another seed or order, or its position is in
                the middle of a step of this batch_size. The message names both values.
        """
        refuse_other_data(state, self._identity())
        epoch, samples = whole_number(state, "epoch"), whole_number(state, "samples_in_epoch")
        total = whole_number(state, "samples_total") if "samples_total" in state else None
        complete = state.get("epoch_complete", False)
        if complete:
            # Another batch_size, sampler or drop_last may begin with the next epoch.
            samples = self._orders.partition(epoch).samples
        elif not self._orders.sampled:
            refuse_other_steps(whole_number(state, "batch_size"), self.batch_size, samples)
        if samples and not complete:
            refuse_other_order(state.get("order", ""), self._orders.digest(epoch), epoch)
        self._go_to(epoch, samples, None if total is None else total - samples)
        restore_state(self.dataset, state)

    def _identity(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "dataset_id": self.dataset_id,
            "permutation_version": PERMUTATION_VERSION,
            "fingerprint": fingerprint(self.n, self.dataset_id),
            **(self.dataset.order_identity(self.shuffle) if isinstance(self.dataset, ShardedStream) else {}),
        }

    def _summarised(self) -> list[int]:
        return [] if self._agreement is None else self._agreement.sample_ids(self.n)

    def _agree(self, summaries: str | None) -> None:
        if self._agreement is None:
            return
        fields = ("dataset_id", "batch_size", "accumulate", "shuffle", "seed", "epoch", "step")
        facts: dict[str, JsonValue] = {"samples": self.n, **{name: getattr(self, name) for name in fields}}
        self._agreement.begin(facts | {"order": self._orders.digest(self._epoch)}, summaries)

    def _end_resumed_epoch(self) -> None:
        if self.rank == 0:
            logger.warning(
                "epoch %s was complete at the save: its loop has no batch left, what follows the loop is run",
                display_number(self._epoch),
            )
        self._resumed_at_end = False
        self._advance_epoch()

    def _advance_epoch(self) -> None:
        if self._step >= self.steps_per_epoch:
            self._samples_before += self._partition.samples
            self._epoch, self._step = self._epoch + 1, 0

    @property
    def _partition(self) -> BatchPartition:
        return self._orders.partition(self._epoch)
