"""From a config to a Trainer, in the order that makes a restart give the same bits."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config.dump import config_xxh3
from dist_train.config.schema import RunConfig
from dist_train.data.exact import ExactLoader
from dist_train.data.shares import Share
from dist_train.distributed.determinism import facts
from dist_train.distributed.run import Run
from dist_train.observability.sink import SinkContext
from dist_train.observability.sinks import Sinks
from dist_train.resilience.faults import FaultPlan
from dist_train.rundir.directory import RunDir
from dist_train.strategies.base import Strategy, is_for_one_process
from dist_train.strategies.prepare import check_options, load_strategy
from dist_train.strategies.warmup import warm_up
from dist_train.trainer.components import make, make_model, make_task, target_of
from dist_train.trainer.fit import Trainer
from dist_train.trainer.own_work import OwnWork
from dist_train.trainer.pace import Pace
from dist_train.trainer.position import Extent
from dist_train.trainer.records import Records
from dist_train.trainer.report import Reporter
from dist_train.trainer.rng import rng_kept, seed_for_model, seed_for_training
from dist_train.trainer.saves import Saves
from dist_train.trainer.schedules import make_schedule
from dist_train.trainer.step import Forward, Stepper
from dist_train.trainer.tally import Reducer
from dist_train.trainer.units import UnitCounter

# Always there; a config names further ones.
_SINKS = ("jsonl", "console")


@dataclass(frozen=True)
class _Data:
    """Both loaders and one batch that nobody trains on."""

    train: ExactLoader
    evaluation: ExactLoader | None
    sample: Share


def build(config: RunConfig, run: Run, run_dir: RunDir, grace_s: float) -> Trainer:
    """Wire everything that one training needs. Collective.

    Model, wrapper, throw-away step, optimizer, schedule, loader; `fit` then restores the
    checkpoint into them, random streams last.

    Args:
        run_dir: where records and checkpoints go.
        grace_s: seconds from a stop signal to the kill.

    Raises:
        ConfigError: a component does not fit; the message names its key.
    """
    seed_for_model(config.seed)
    data, task = _data(config, run), make_task(config)
    seed_for_model(config.seed)
    strategy, model = _wrapped_model(config, run)
    forward = Forward(model, task, config.trainer.precision, run.device)
    # DDP lays out its exchange by its first backward pass: do one before any that counts, at every start.
    warm_up(model, lambda: torch.autograd.backward([forward(data.sample).total]))
    extent = Extent.of(data.train.n, config.data.batch_size, config.trainer.epochs, config.trainer.steps)
    optimizer: Optimizer = make(config.optimizer, "optimizer", model.parameters())
    schedule = _schedule(config, optimizer, extent)
    units = UnitCounter(task, run.control, data.sample)
    faults = FaultPlan.from_env(run.rank, run_dir.path)
    manager = _manager(config, run, run_dir, strategy)
    state = {"model": model, "optimizer": optimizer, **({} if schedule is None else {"schedule": schedule})}
    saves = Saves(manager, config.checkpoint, extent, data.train, state, run.control, grace_s, faults)
    sinks, pace = _sinks(config, run, run_dir, extent), Pace()
    own_work = OwnWork(strategy.unwrap(model))
    records = Records(run, Reporter(extent), Reducer(run.control), sinks, pace, own_work)
    seed_for_training(config.seed, run.rank)
    return Trainer(
        run=run,
        config=config.trainer,
        extent=extent,
        loader=data.train,
        evaluation=data.evaluation,
        stepper=Stepper(
            forward, strategy, optimizer, schedule, units, run.world_size, config.trainer.clip_norm
        ),
        records=records,
        saves=saves,
        faults=faults,
        sinks=sinks,
        pace=pace,
    )


def _data(config: RunConfig, run: Run) -> _Data:
    part = config.data.evaluation
    train = make(config.data.train, "data")
    evaluation = None if part is None else _loader(make(part, "data"), config, run, shuffle=False)
    # A loader of its own, so that the one that counts is not moved, nor any random stream.
    throw_away = _loader(train, config, run, workers=0)
    with rng_kept(), closing(throw_away.shares()) as shares:  # type: ignore[type-var]
        sample = next(shares)
    return _Data(_loader(train, config, run), evaluation, sample)


def _loader(
    dataset: Any, config: RunConfig, run: Run, shuffle: bool = True, workers: int | None = None
) -> ExactLoader:
    return ExactLoader(
        dataset,
        config.data.batch_size,
        shuffle=shuffle,
        seed=config.seed,
        rank=run.rank,
        world_size=run.world_size,
        workers=config.data.workers if workers is None else workers,
        accumulate=config.trainer.accumulate,
        pin_memory=run.device.type == "cuda",
        device=run.device,
    )


def _wrapped_model(config: RunConfig, run: Run) -> tuple[Strategy, nn.Module]:
    strategy = load_strategy(config.strategy.name)
    options = check_options(strategy, config.strategy.options)
    if run.world_size == 1 and not is_for_one_process(strategy):
        strategy = load_strategy("single")
        options = strategy.Options()
    return strategy, strategy.wrap(make_model(config).to(run.device), run, options)


def _schedule(config: RunConfig, optimizer: Optimizer, extent: Extent) -> Any | None:
    if config.schedule is None:
        return None
    target = target_of(config.schedule, "schedule")
    return make_schedule(target, config.schedule.args, optimizer, extent.total_steps)


def _manager(config: RunConfig, run: Run, run_dir: RunDir, strategy: Strategy) -> CheckpointManager:
    best = config.checkpoint.keep_best
    return CheckpointManager(
        run_dir.checkpoints,
        keep_last=config.checkpoint.keep_last,
        keep_best=0 if best is None else best.n,
        best_mode="min" if best is None else best.mode,
        control=run.control,
        run_id=run.run_id,
        attempt=run.attempt,
        config_xxh3=config_xxh3(config),
        strategy=strategy.name,
        determinism={**facts(run.device), "mode": config.deterministic},
    )


def _sinks(config: RunConfig, run: Run, run_dir: RunDir, extent: Extent) -> Sinks:
    if not run.is_main:
        return Sinks()
    names = list(dict.fromkeys([*_SINKS, *config.logging.sinks]))
    return Sinks.open(names, SinkContext(run_dir, extent.total_steps, extent.epochs))
