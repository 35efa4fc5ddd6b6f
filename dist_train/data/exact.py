"""The exact loader: every sample once per epoch at any world size, resumable at the trained position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dist_train.data.demands import demand_count, length_of
from dist_train.data.feed import Feed
from dist_train.data.fingerprint import fingerprint, refuse_other_data, whole_number
from dist_train.data.permutation import PERMUTATION_VERSION, Permutation
from dist_train.data.reading import Collate, SampleReader
from dist_train.data.shares import Facts, Order, Share, SharePlan
from dist_train.distributed.devices import as_device
from dist_train.distributed.run import current
from dist_train.distributed.share import ShareBox
from dist_train.errors import CheckpointError, ConfigError, UsageError

logger = logging.getLogger(__name__)


class ExactLoader:
    """Batches of one rank. `batch_size` is the samples per optimizer step of the WHOLE job.

    Iterating gives the rest of the current epoch, then the epoch advances by itself: no
    `set_epoch`. Breaking out of a loop and iterating again goes on with the rest of the SAME
    epoch. Inside the loop body the batch in hand counts as done, so `state_dict()` after
    `optimizer.step()` is the position to go on from; batches that workers have prefetched do not
    count. Nothing is padded or dropped: a last step smaller than the others, or a rank without a
    sample in it, is told by `Share.count` (and, in a plain loop, by the run's share, with which
    `dist_train.prepare` weighs gradients).

    Order is a function of (seed, epoch, length, dataset id). What `dataset[i]` and `collate_fn`
    draw from Python's, numpy's global and torch's CPU generator is keyed by (seed, epoch, sample
    id); the training's own streams are never moved. Keying costs about 10 us per sample: a dataset
    that draws nothing says `deterministic_items = True`, and TensorDataset needs not.

    Args:
        dataset: map style, with a length; `dataset_id` and `deterministic_items` are honoured.
        batch_size: samples per optimizer step over all ranks.
        shuffle: False keeps the dataset's order.
        seed: 0 <= seed < 2**128, the same on all ranks.
        rank: this process among `world_size`.
        workers: loader processes of this rank; new ones in every epoch, as DataLoader's by default.
        accumulate: micro-batches per optimizer step and rank; then `shares()` must be used.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: as DataLoader's.
        dataset_id: tells data sets apart; default the dataset's own `dataset_id`, else "".
        share_box: told the share of each batch of a plain loop.
        worker_init_fn: as DataLoader's.
        multiprocessing_context: how workers start.
        device: a GPU to which each batch is copied while the one before it trains; None, or the CPU:
            batches stay where they are read.

    Raises:
        ConfigError: the dataset has no length or no items by index, or a number is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
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
        share_box: ShareBox | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str = "fork",
        device: torch.device | str | None = None,
    ) -> None:
        demand_count("batch_size", batch_size, 1)
        demand_count("workers", workers, 0)
        demand_count("accumulate", accumulate, 1)
        demand_count("world_size", world_size, 1)
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"rank {rank} is not in 0 .. {world_size - 1}", mend="give the rank of this process"
            )
        self.dataset = dataset
        self.n = length_of(dataset)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.workers = workers
        self.accumulate = accumulate
        self.dataset_id = str(getattr(dataset, "dataset_id", "")) if dataset_id is None else dataset_id
        self.share_box = share_box
        self._plan = SharePlan(self.n, batch_size, rank, world_size, accumulate)
        reader = SampleReader(dataset, collate_fn, seed, self.dataset_id)
        self._feed = Feed(
            reader,
            self._plan,
            workers,
            pin_memory,
            worker_init_fn,
            multiprocessing_context,
            None if device is None else as_device(device),
        )
        self._epoch = 0
        self._step = 0
        self._turn = object()
        self._order(0)  # a seed out of range is found here, not at the first batch
        if batch_size < world_size * accumulate and rank == 0:
            logger.warning(
                "batch_size %s is smaller than %s ranks x %s micro-batches: some of them train on nothing",
                batch_size,
                world_size,
                accumulate,
            )

    def __len__(self) -> int:
        """Optimizer steps per epoch: ceil(samples / batch_size)."""
        return self._plan.steps

    @property
    def epoch(self) -> int:
        """The epoch being read, from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Optimizer steps of this epoch handed out; the one in hand counts."""
        return self._step

    @property
    def samples_in_epoch(self) -> int:
        """Samples of this epoch that the whole job is done with; those in hand count."""
        return min(self._step * self.batch_size, self.n)

    def __iter__(self) -> Iterator[Any]:
        if self.accumulate != 1:
            raise UsageError(
                f"a loader with accumulate={self.accumulate} cannot be iterated as plain batches",
                cause="a plain loop steps the optimizer after every batch",
                mend="iterate loader.shares(), or leave accumulate at 1",
            )
        return self._plain_batches()

    def shares(self) -> Iterator[Share]:
        """The rest of the epoch as Share objects, every micro-batch of this rank.

        The position moves on when the last micro-batch of a step is handed out.
        """
        self._settle()
        turn = self._turn = object()
        with self._feed.open(self._order(self._epoch), self._epoch, self._step) as batches:
            for facts, batch in zip(self._plan.facts(self._step), batches, strict=True):
                if facts.micro == self.accumulate - 1:
                    self._step = facts.step + 1
                yield self._share(facts, batch)
                if self._turn is not turn:
                    raise UsageError(
                        "an iterator of this loader was used after another iteration or a seek began",
                        cause="one position cannot follow two iterations: samples would be repeated",
                        mend="make one loader for each loop",
                    )
        self._settle()

    def seek(self, epoch: int, samples_in_epoch: int) -> None:
        """Go to a position in O(1). It must lie between two optimizer steps.

        Raises:
            CheckpointError: it does not, or it is beyond the epoch.
        """
        if not (0 <= samples_in_epoch <= self.n and epoch >= 0):
            raise CheckpointError(
                f"position {samples_in_epoch} of epoch {epoch} does not exist in {self.n} samples",
                mend="give the dataset that the position was counted in",
            )
        if samples_in_epoch % self.batch_size and samples_in_epoch != self.n:
            raise CheckpointError(
                f"position {samples_in_epoch} is not a multiple of batch_size {self.batch_size}",
                cause="it was saved with another batch_size, in the middle of what is now one step",
                mend="go on with the batch_size of the checkpoint, at least to the end of its epoch",
            )
        self._turn = object()
        self._epoch = epoch
        self._step = -(-samples_in_epoch // self.batch_size)
        self._settle()

    def state_dict(self) -> dict[str, Any]:
        """The position and what it was counted in, as JSON values; independent of the world size."""
        at_end = self._step == len(self)
        epoch, samples = (self._epoch + 1, 0) if at_end else (self._epoch, self.samples_in_epoch)
        return {
            "epoch": epoch,
            "samples_in_epoch": samples,
            "samples_total": epoch * self.n + samples,
            "batch_size": self.batch_size,
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, also one written at another world size.

        Raises:
            CheckpointError: it belongs to other data, another seed or order, or its position is in
                the middle of a step of this batch_size. The message names both values.
        """
        refuse_other_data(state, self._identity())
        epoch, samples = whole_number(state, "epoch"), whole_number(state, "samples_in_epoch")
        saved_batch_size = whole_number(state, "batch_size")
        if saved_batch_size != self.batch_size:
            if samples % self.batch_size:
                raise CheckpointError(
                    f"batch_size was {saved_batch_size} at the save and is {self.batch_size} now",
                    cause=f"position {samples} lies in the middle of a step of {self.batch_size}",
                    mend=f"go on with batch_size {saved_batch_size}, or change it at an epoch's end",
                )
            logger.info("batch_size was %s at the save and is %s now", saved_batch_size, self.batch_size)
        self.seek(epoch, samples)

    def _identity(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "dataset_id": self.dataset_id,
            "permutation_version": PERMUTATION_VERSION,
            "fingerprint": fingerprint(self.n, self.dataset_id),
        }

    def _settle(self) -> None:
        if self._step >= len(self):
            self._epoch, self._step = self._epoch + 1, 0

    def _share(self, facts: Facts, batch: Any) -> Share:
        return Share(
            batch,
            facts.count,
            facts.step_count,
            facts.step,
            facts.micro,
            self.accumulate,
            facts.samples_in_epoch,
        )

    def _plain_batches(self) -> Iterator[Any]:
        slot = None if self.share_box is None else self.share_box.open()
        shares = self.shares()
        try:
            for share in shares:
                if slot is not None:
                    slot.set(share.count, share.step_count)
                yield share.batch
        finally:
            # A loop that is left early closes this generator; the inner one holds the workers.
            shares.close()  # type: ignore[attr-defined]
            if slot is not None:
                slot.close()

    def _order(self, epoch: int) -> Order:
        if not self.shuffle:
            return _unchanged
        return Permutation(self.n, self.seed, epoch, self.dataset_id).__getitem__


def _unchanged(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


def loader(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int | None = None,
    workers: int = 0,
    collate_fn: Collate | None = None,
    pin_memory: bool | None = None,
    dataset_id: str | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: str = "fork",
    device: torch.device | str | None = None,
) -> ExactLoader:
    """An ExactLoader for this rank of the current run (`dist_train.init`), else for one process.

    Args:
        dataset: map style, with a length.
        batch_size: samples per optimizer step of the WHOLE job: adding nodes changes only the time.
        shuffle: False keeps the dataset's order.
        seed: default the run's, else 0.
        workers: loader processes per rank.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: default True where `device`, or the run's, is a GPU.
        dataset_id: tells data sets apart; default the dataset's own `dataset_id`, else "".
        worker_init_fn: as DataLoader's.
        multiprocessing_context: "fork", "spawn" or "forkserver".
        device: `run.device`: where that is a GPU, each batch comes on it, copied while the one before
            it trains. None: batches are the CPU's, pinned where the run is on a GPU.
    """
    run = current()
    if seed is None:
        seed = 0 if run is None else run.seed
    if pin_memory is None:
        devices = [None if run is None else run.device, None if device is None else as_device(device)]
        pin_memory = any(one is not None and one.type == "cuda" for one in devices)
    return ExactLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        seed=seed,
        rank=0 if run is None else run.rank,
        world_size=1 if run is None else run.world_size,
        workers=workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        dataset_id=dataset_id,
        share_box=None if run is None else run.share,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=multiprocessing_context,
        device=device,
    )
