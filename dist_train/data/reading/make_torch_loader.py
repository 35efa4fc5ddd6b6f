"""The TorchLoader of a data set, by the options that every loader of `dt.loader` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dist_train.data.reading.dataset_state import UnchangedState
from dist_train.data.reading.sample_reader import Collate, SampleReader
from dist_train.data.reading.torch_loader import TorchLoader, WorkerOptions
from dist_train.data.validation import check_workers
from dist_train.distributed.devices import as_device


def make_torch_loader(
    dataset: Any,
    *,
    seed: int,
    dataset_id: str,
    rank: int,
    collate_fn: Collate | None,
    workers: int,
    persistent_workers: bool | None,
    prefetch_factor: int | None,
    timeout: float,
    worker_init_fn: Callable[[int], None] | None,
    multiprocessing_context: str,
    pin_memory: bool,
    device: torch.device | str | None,
    guard: UnchangedState | None = None,
) -> TorchLoader:
    """Check the options and make it; for what they are see ExactLoader.

    Args:
        guard: refuses reads that change the data set's state.

    Raises:
        ConfigError: an option of workers is out of range, or is given without workers.
    """
    check_workers(workers, persistent_workers, prefetch_factor, timeout)
    options = WorkerOptions(
        workers, persistent_workers, prefetch_factor, timeout, worker_init_fn, multiprocessing_context
    )
    reader = SampleReader(dataset, collate_fn, seed, dataset_id, guard)
    return TorchLoader(reader, options, pin_memory, None if device is None else as_device(device), rank)
