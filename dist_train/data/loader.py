"""`dt.loader`: the loader of this rank in the current run, by the kind of data and of use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch.utils.data import IterableDataset

from dist_train.data.current_run import run_for_loader
from dist_train.data.data_agreement import DataAgreement
from dist_train.data.epoch_order import SampleSource
from dist_train.data.evaluation_loader import EvaluationLoader, refuse_training_options
from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading.sample_reader import Collate
from dist_train.data.streams.iterable_loader import IterableLoader, refuse_map_style_options
from dist_train.data.streams.sharded_stream import agree_on_shards
from dist_train.data.validation import check_count
from dist_train.distributed.control_group import Control
from dist_train.distributed.devices import as_device

# What trains: both give micro-batches and keep a position.
AnyLoader = ExactLoader | IterableLoader


@overload
def loader(
    dataset: Any, batch_size: int | None = None, *, evaluation: Literal[False] = False, **options: Any
) -> ExactLoader | IterableLoader: ...


@overload
def loader(
    dataset: Any, batch_size: int | None = None, *, evaluation: Literal[True], **options: Any
) -> EvaluationLoader: ...


def loader(  # type: ignore[misc]  # the overloads leave its other parameters to **options
    dataset: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool = True,
    evaluation: bool = False,
    seed: int | None = None,
    workers: int = 0,
    collate_fn: Collate | None = None,
    pin_memory: bool | None = None,
    dataset_id: str | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: str = "fork",
    device: torch.device | str | None = None,
    accumulate: int = 1,
    drop_last: bool = False,
    sampler: SampleSource | None = None,
    batch_sampler: SampleSource | None = None,
    persistent_workers: bool | None = None,
    prefetch_factor: int | None = None,
    timeout: float = 0,
) -> ExactLoader | IterableLoader | EvaluationLoader:
    """An ExactLoader for this rank of the current run (`dist_train.init`), else for one process.

    With `evaluation=True` an EvaluationLoader.

    Args:
        dataset: map style, with a length; or a ShardedStream; or an IterableDataset, which gives an
            IterableLoader and keeps its own order.
        batch_size: samples per optimizer step of the WHOLE job: adding nodes changes only the time; None
            with `batch_sampler`.
        evaluation: each sample exactly once over all ranks, in order, from the first one at every
            iteration; for metrics, not for training.
        shuffle: False keeps the dataset's order, as an evaluation does in any case.
        seed: default the run's, else 0.
        workers: loader processes per rank.
        collate_fn: list of samples -> batch; default torch's.
        pin_memory: default True where `device`, or the run's, is a GPU.
        dataset_id: identifies the data set; default the dataset's own `dataset_id`, else "".
        worker_init_fn: as DataLoader's.
        multiprocessing_context: "fork", "spawn" or "forkserver".
        device: `run.device`: a GPU to which each batch is copied while the one before it trains. None:
            batches stay in CPU memory, pinned if the run is on a GPU.
        accumulate: micro-batches per optimizer step: a plain loop gets so many batches for each, and steps
            the optimizer where `loader.step_complete`.
        drop_last: leave out the last step of an epoch where it has fewer than `batch_size` samples.
        sampler, batch_sampler, persistent_workers, prefetch_factor, timeout: as ExactLoader's.

    Raises:
        ConfigError: a rank of a job outside a run; an argument that does not fit.
    """
    run = run_for_loader()
    if seed is None:
        seed = 0 if run is None else run.seed
    if pin_memory is None:
        devices = [None if run is None else run.device, None if device is None else as_device(device)]
        pin_memory = any(one is not None and one.type == "cuda" for one in devices)
    shared: dict[str, Any] = {
        "seed": seed,
        "workers": workers,
        "collate_fn": collate_fn,
        "pin_memory": pin_memory,
        "dataset_id": dataset_id,
        "worker_init_fn": worker_init_fn,
        "multiprocessing_context": multiprocessing_context,
        "device": device,
    }
    weight = None if run is None else run.batch_weight
    if isinstance(dataset, IterableDataset):
        refuse_map_style_options(
            evaluation=evaluation,
            sampler=sampler,
            batch_sampler=batch_sampler,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
        )
        return IterableLoader(
            dataset,
            check_count("batch_size", batch_size, 1),
            control=None if run is None else run.control,
            place=None if run is None else run.place,
            accumulate=accumulate,
            batch_weight=weight,
            drop_last=drop_last,
            **shared,
        )
    shuffled = shuffle and not evaluation
    control = Control() if run is None else run.control
    agree_on_shards(dataset, control, 1 if batch_size is None else batch_size, shuffled)
    shared |= {
        "rank": 0 if run is None else run.place.data_rank,
        "world_size": 1 if run is None else run.place.data_size,
        "agreement": None if run is None or run.exchange is None else DataAgreement(run.exchange, dataset),
        "persistent_workers": persistent_workers,
        "prefetch_factor": prefetch_factor,
        "timeout": timeout,
    }
    if evaluation:
        refuse_training_options(
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            accumulate=accumulate != 1,
        )
        if run is not None and run.exchange is not None:
            shared["evaluation"] = run.evaluation_buffers.evaluation
        return EvaluationLoader(dataset, check_count("batch_size", batch_size, 1), **shared)
    return ExactLoader(
        dataset,
        batch_size,
        shuffle=shuffle,
        batch_weight=weight,
        accumulate=accumulate,
        drop_last=drop_last,
        sampler=sampler,
        batch_sampler=batch_sampler,
        **shared,
    )
