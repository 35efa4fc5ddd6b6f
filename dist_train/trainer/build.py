"""From a config's components to a Trainer, in the order that makes a restart give the same bits.

`build` makes, in this order: loaders, one sample batch that is not trained on, the wrapped model, one
throw-away step, optimizer, schedule, unit counter, records and sinks, callbacks, saves. The RNG state of
the training comes last; `Trainer.fit` then restores a checkpoint into all of it.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config.dump import config_xxh3
from dist_train.config.schema import LossScaleConfig, RunConfig
from dist_train.data.batch_partition import MicroBatch
from dist_train.data.data_agreement import DataAgreement
from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import AnyLoader
from dist_train.data.streams.iterable_loader import IterableLoader
from dist_train.data.streams.sharded_stream import agree_on_shards
from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.determinism import facts
from dist_train.distributed.gradient_weights.exchange_time import measure_exchange
from dist_train.distributed.run import Run
from dist_train.distributed.seeding import rng_kept
from dist_train.distributed.smallest_batch import watch_batch_norm
from dist_train.errors import ConfigError
from dist_train.observability.sink import SinkContext
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.resilience.fault_injection import FaultPlan
from dist_train.rundir.directory import RunDir
from dist_train.rundir.remote_checkpoints import url_of
from dist_train.strategies.base import (
    Strategy,
    StrategyOptions,
    place_of,
    places_model,
    refuse_micro_batches,
    works_alone,
)
from dist_train.strategies.lazy_parameters import refuse_lazy_parameters
from dist_train.strategies.prepare import check_options, load_strategy
from dist_train.strategies.split_model import refuse_split_model
from dist_train.strategies.stages.pipeline_module import pipeline_of
from dist_train.strategies.warmup import warm_up
from dist_train.trainer.build_components import Components, recompute_activations
from dist_train.trainer.callback_hooks import CallbackHooks
from dist_train.trainer.checkpointing import Saves
from dist_train.trainer.compiled_model import compiled
from dist_train.trainer.half_precision.loss_scaler import LossScaler
from dist_train.trainer.loss_normalizer import UnitCounter, units_vary
from dist_train.trainer.non_finite import NonFiniteRule
from dist_train.trainer.parameter_groups import check_group_options, grouped
from dist_train.trainer.records.metric_records import Reporter
from dist_train.trainer.records.metric_sums import Reducer
from dist_train.trainer.records.remote_record import RemoteRecord
from dist_train.trainer.records.step_records import Records
from dist_train.trainer.records.straggler import OwnWork
from dist_train.trainer.records.throughput import Pace
from dist_train.trainer.rng_isolation import seed_for_training
from dist_train.trainer.step import Forward, Stepper
from dist_train.trainer.trainer import Trainer
from dist_train.trainer.training_position import Horizon

# Always open; a config names further ones.
_SINKS = ("jsonl", "console")


@dataclass(frozen=True)
class _Data:
    """Both loaders and one batch that is not trained on."""

    train: AnyLoader
    evaluation: AnyLoader | None
    sample: MicroBatch


def build(config: RunConfig, components: Components, run: Run, run_dir: RunDir, grace_s: float) -> Trainer:
    """Assemble what one training needs. Collective.

    Args:
        components: what the config names, made by `make_components`.
        run_dir: where records and checkpoints go.
        grace_s: seconds from a stop signal to the kill.

    Raises:
        ConfigError: a component or option does not fit; the message names its key.
    """
    strategy, options = _strategy(config, run)
    refuse_micro_batches(strategy, options, run.world_size, config.trainer.accumulate)
    run.take_place(place_of(strategy, options, run.rank, run.world_size))
    data = _data(config, components, run)
    model, called = _wrapped_model(config, components.model, run, strategy, options)
    forward = Forward(
        model, components.task, config.trainer.precision, run.device, config.trainer.channels_last
    )
    # DDP lays out its exchange by its first backward pass: do one before any that counts, at every start.
    warm_up(model, lambda: torch.autograd.backward([forward(data.sample).total]))
    horizon = Horizon.of(
        data.train.samples_per_epoch, config.data.batch_size, config.trainer.epochs, config.trainer.steps
    )
    optimizer = components.optimizer(grouped(strategy.unwrap(model), config.parameter_groups))
    check_group_options(optimizer, config.parameter_groups)
    schedule = components.schedule(optimizer, horizon.total_steps)
    if isinstance(schedule, ReduceLROnPlateau) and data.evaluation is None:
        raise ConfigError(
            f"schedule: {type(schedule).__name__} follows a metric of the evaluation, and there is none",
            hint="set data.evaluation, or choose another schedule",
        )
    units = UnitCounter(components.task, run.control, data.sample, run.place.counts)
    pipeline = pipeline_of(model)
    pace, sinks, bare_model = Pace(), _sinks(config, run, run_dir, horizon), strategy.unwrap(model)
    records = Records(
        run,
        Reporter(horizon),
        Reducer(run.control, run.place.counts),
        sinks,
        pace,
        OwnWork(bare_model if called is None else called)
        if pipeline is None
        else OwnWork(pipeline.layers),  # the model's call also waits for the stage before
    )
    hooks = CallbackHooks(
        components.callbacks,
        run,
        run_dir,
        horizon,
        bare_model,
        optimizer,
        metrics=lambda: records.newest,
        sinks=sinks,
        timeout_s=config.resilience.collective_timeout_s,
    )
    manager = _manager(config, run, run_dir, strategy)
    state = {"model": model, "optimizer": optimizer, **({} if schedule is None else {"schedule": schedule})}
    finite = NonFiniteRule(
        run,
        config.trainer.on_nonfinite,
        model,
        data.train,
        horizon,
        lambda: saves.newest_step(),
        manager.storage.location,
        run_dir.path,
        lambda rank: place_of(strategy, options, rank, run.world_size).data_rank,
    )
    scaler = _loss_scaler(config, run)
    if scaler is not None:
        state["loss_scaler"] = scaler
    state |= {"loader": data.train, **hooks.state(), **finite.state()}
    faults = FaultPlan.from_env(run.rank, run_dir.path)
    saves = Saves(
        manager,
        config.checkpoint,
        horizon,
        data.train,
        state,
        run.control,
        grace_s,
        faults,
        asynchronous=config.checkpoint.is_asynchronous(run.device.type),
        remote=RemoteRecord(manager, run_dir, config.checkpoint.directory is not None),
    )
    seed_for_training(config.seed, run.place.data_rank)
    clip_norm = config.trainer.clip_norm
    return Trainer(
        run=run,
        config=config.trainer,
        horizon=horizon,
        loader=data.train,
        evaluation=data.evaluation,
        stepper=Stepper(
            forward,
            strategy,
            optimizer,
            schedule,
            units,
            run.place.data_size,
            clip_norm,
            skips=config.trainer.on_nonfinite == "skip",
            scaler=scaler,
            is_main=run.is_main,
        ),
        finite=finite,
        records=records,
        saves=saves,
        callbacks=hooks,
        faults=faults,
        sinks=sinks,
        pace=pace,
    )


def _data(config: RunConfig, components: Components, run: Run) -> _Data:
    dataset = components.evaluation
    evaluation = None
    if dataset is not None:
        evaluation = _loader(dataset, components, config, run, evaluation=True, compare=True)
    # A loader of its own, so that neither the position of the training's nor any RNG state moves.
    throw_away = _loader(components.train, components, config, run, workers=0, compare=True)
    with rng_kept(), closing(throw_away.micro_batches()) as micro_batches:  # type: ignore[type-var]
        sample = next(micro_batches)
    return _Data(_loader(components.train, components, config, run), evaluation, sample)


def _loader(
    dataset: Any,
    components: Components,
    config: RunConfig,
    run: Run,
    evaluation: bool = False,
    workers: int | None = None,
    compare: bool = False,
) -> AnyLoader:
    workers = config.data.workers if workers is None else workers
    # An evaluation counts every sample.
    drop_last = config.data.drop_last and not evaluation
    # Units that vary are counted in each batch: in CPU memory, where that waits for nothing. The forward
    # pass then copies the batch, from pinned memory.
    device = None if units_vary(components.task) else run.device
    if isinstance(dataset, IterableDataset):
        return IterableLoader(
            dataset,
            config.data.batch_size,
            control=run.control,
            place=run.place,
            seed=config.seed,
            workers=workers,
            accumulate=config.trainer.accumulate,
            collate_fn=components.collate_fn,
            drop_last=drop_last,
            pin_memory=run.device.type == "cuda",
            device=device,
        )
    agree_on_shards(dataset, run.control, config.data.batch_size, not evaluation)
    return ExactLoader(
        dataset,
        config.data.batch_size,
        shuffle=not evaluation,
        seed=config.seed,
        rank=run.place.data_rank,
        world_size=run.place.data_size,
        workers=workers,
        accumulate=config.trainer.accumulate,
        drop_last=drop_last,
        collate_fn=components.collate_fn,
        pin_memory=run.device.type == "cuda",
        device=device,
        agreement=DataAgreement(run.exchange, dataset) if compare and run.exchange is not None else None,
    )


def _strategy(config: RunConfig, run: Run) -> tuple[Strategy, StrategyOptions]:
    strategy = load_strategy(config.strategy.name)
    options = check_options(strategy, config.strategy.options)
    if run.world_size == 1 and not works_alone(strategy):
        strategy = load_strategy("single")
        options = strategy.Options()
    return strategy, options


def _wrapped_model(
    config: RunConfig, model: nn.Module, run: Run, strategy: Strategy, options: StrategyOptions
) -> tuple[nn.Module, nn.Module | None]:
    """What the strategy makes of the model, and the compiled model inside of that."""
    refuse_lazy_parameters(model)
    refuse_split_model(model, run.device)
    watch_batch_norm(model)
    moved = model if places_model(strategy) else model.to(run.device)
    if config.trainer.channels_last:
        moved = moved.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    recompute_activations(moved, config)
    made = None
    if config.trainer.compile is not None:
        called = compiled(moved, config.trainer.compile, run.device)
        moved, made = called, None if called is moved else called
    wrapped = strategy.wrap(moved, run, options)
    measure_exchange(wrapped, run.device.type == "cpu", run.world_size == 1)
    return wrapped, made


def _loss_scaler(config: RunConfig, run: Run) -> LossScaler | None:
    if config.trainer.precision != "fp16":
        return None
    chosen = config.trainer.loss_scale or LossScaleConfig()
    return LossScaler(**chosen.model_dump(), control=run.control)


def _manager(config: RunConfig, run: Run, run_dir: RunDir, strategy: Strategy) -> CheckpointManager:
    best, directory = config.checkpoint.keep_best, config.checkpoint.directory
    return CheckpointManager(
        run_dir.checkpoints if directory is None else url_of(directory, run_dir),
        keep_last=config.checkpoint.keep_last,
        keep_best=0 if best is None else best.n,
        best_mode="min" if best is None else best.mode,
        control=run.control,
        run_id=run.run_id,
        attempt=run.attempt,
        config_xxh3=config_xxh3(config),
        strategy=strategy.name,
        determinism={**facts(run.device), "mode": config.deterministic, **_compiler(config)},
    )


def _compiler(config: RunConfig) -> dict[str, JsonValue]:
    chosen = config.trainer.compile
    if chosen is None:
        return {}
    blocks = "" if chosen.modules is None else " by module"
    return {"compile": f"{chosen.backend} {chosen.mode}{blocks}"}


def _sinks(config: RunConfig, run: Run, run_dir: RunDir, horizon: Horizon) -> SinkFanout:
    if not run.is_main:
        return SinkFanout()
    named = config.logging.sinks
    names = list(dict.fromkeys([*_SINKS, *(sink.name for sink in named)]))
    context = SinkContext(run_dir, horizon.total_steps, horizon.epochs)
    options = {sink.name: sink.options for sink in named}
    # Others may draw (an id of a run, jitter of a retry); keeping the RNG state costs some 50 microseconds.
    around = rng_kept if set(names) - set(_SINKS) else nullcontext
    return SinkFanout.open(names, context, options, around)
