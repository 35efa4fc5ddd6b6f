"""The evaluation loader: each sample once over all ranks, from the beginning at every iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dist_train.data.batch_partition import Order
from dist_train.data.data_agreement import DataAgreement
from dist_train.data.reading.make_torch_loader import make_torch_loader
from dist_train.data.reading.sample_reader import Collate
from dist_train.data.validation import check_count, check_rank, id_of, length_of
from dist_train.distributed.control_group import JsonValue
from dist_train.errors import ConfigError
from dist_train.rundir.times.span_clock import EVALUATION, span_clock


@dataclass(frozen=True)
class EvaluationPartition:
    """Rank r of W reads the samples from ceil(r * n / W) up to ceil((r + 1) * n / W), in order.

    So the ranks' outputs, one after the other, are in the order of the data set. If there are as many
    samples as ranks, every rank has equally many batches, each with a sample: a model that exchanges
    something in its forward pass needs equally many.
    """

    n: int
    batch_size: int
    rank: int
    world_size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The first sample of this rank, and the one after its last."""
        return -(-self.rank * self.n // self.world_size), -(-(self.rank + 1) * self.n // self.world_size)

    @property
    def batches(self) -> int:
        """Batches of this rank: 0 if it has no sample."""
        begin, end = self.bounds
        return min(-(-self.n // self.batch_size), max(1, self.n // self.world_size)) if end > begin else 0

    def sample_ids(self, order: Order, first_step: int) -> Iterator[list[int]]:
        """The sample ids of each batch from `first_step` on."""
        begin, end = self.bounds
        size, larger = divmod(end - begin, max(1, self.batches))
        for batch in range(first_step, self.batches):
            low = begin + batch * size + min(batch, larger)
            high = low + size + (batch < larger)
            yield order(np.arange(low, high, dtype=np.int64)).tolist()


class EvaluationLoader:
    """Batches of one rank for an evaluation. `batch_size` is the samples per step of the WHOLE job.

    Over all ranks each sample is read exactly once: nothing is padded, repeated or dropped, so that sums
    and counts of a plain loop are exact. Each iteration begins at the first sample, also after a
    `break`; there is no position to save. It is in the order of the data set: what `run.gather` returns
    of all outputs of one iteration is in that order. Random draws of the data set are the same in every
    evaluation, and the training's RNG state never changes.

    All ranks must iterate it together: a rank alone would see its own part only, and is refused. With
    fewer samples than ranks some ranks have no batch; they still take part in `run.mean` and
    `run.gather`. With a model that is spread over ranks (fsdp) that is refused.

    Args:
        dataset: map style, with a length.
        batch_size: samples per step over all ranks.
        seed: keys what the data set draws.
        rank: this process among `world_size`.
        workers: loader processes of this rank.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: as DataLoader's.
        dataset_id: identifies the data set; default the dataset's own `dataset_id`, else "".
        worker_init_fn: as DataLoader's.
        multiprocessing_context: how workers start.
        device: a GPU to which each batch is copied while the one before it is used.
        agreement: compares the data with the other ranks' at the start of each iteration.
        evaluation: entered by each iteration where all ranks are known to have begun it; told whether all
            of them have equally many batches.
        persistent_workers, prefetch_factor, timeout: as ExactLoader's.

    Raises:
        ConfigError: the dataset has no length or no items by index, or a number is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        dataset_id: str | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str = "fork",
        device: torch.device | str | None = None,
        agreement: DataAgreement | None = None,
        evaluation: Callable[[bool], AbstractContextManager[Any]] = nullcontext,
        persistent_workers: bool | None = None,
        prefetch_factor: int | None = None,
        timeout: float = 0,
    ) -> None:
        check_count("batch_size", batch_size, 1)
        check_rank(rank, world_size)
        self.dataset = dataset
        self.n = length_of(dataset)
        self.batch_size = batch_size
        self.seed = seed
        self.dataset_id = id_of(dataset, dataset_id)
        self._agreement = agreement
        self._evaluation = evaluation
        self._partition = EvaluationPartition(self.n, batch_size, rank, world_size)
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
        )

    def __len__(self) -> int:
        """Batches of this rank; equal on all ranks if there are as many samples as ranks."""
        return self._partition.batches

    def __iter__(self) -> Iterator[Any]:
        with span_clock().whole(EVALUATION):
            yield from self._batches()

    def _batches(self) -> Iterator[Any]:
        summarised = [] if self._agreement is None else self._agreement.sample_ids(self.n)
        with self._torch_loader.open(self._partition, _in_order, 0, 0, summarised) as batches:
            self._agree(next(batches) if summarised else None)
            with self._evaluation(self.n >= self._partition.world_size):
                yield from batches

    def _agree(self, summaries: str | None) -> None:
        if self._agreement is None:
            return
        facts: dict[str, JsonValue] = {
            "samples": self.n,
            "dataset_id": self.dataset_id,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "kind": "evaluation",
        }
        self._agreement.begin(facts, summaries)


def _in_order(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


def refuse_training_options(**options: object) -> None:
    """Check that an evaluation has none of the options that say which samples a training step reads.

    Raises:
        ConfigError: one is set.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError(
            f"dt.loader(…, evaluation=True) does not take {', '.join(given)}",
            cause="an evaluation reads every sample once, in the order of the data set",
            hint=f"remove {given[0]}; for a part of the data: torch.utils.data.Subset(dataset, indices)",
        )
