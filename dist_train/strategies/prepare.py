"""dt.prepare: wrap a model so that it trains on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import nn

from dist_train import registry
from dist_train.distributed.parameter_shards import sharded_modules
from dist_train.distributed.place import Place
from dist_train.distributed.run import Run, current
from dist_train.distributed.smallest_batch import watch_batch_norm
from dist_train.errors import ConfigError
from dist_train.near_names import nearest
from dist_train.strategies.base import (
    Strategy,
    StrategyOptions,
    place_of,
    places_model,
    runs_steps,
    works_alone,
)
from dist_train.strategies.lazy_parameters import refuse_lazy_parameters
from dist_train.strategies.prepared_models import remember_strategy
from dist_train.strategies.split_model import refuse_split_model
from dist_train.strategies.unwrap import find_ddp, is_wrapped
from dist_train.strategies.warmup import WarmUpOnFirstBatch

logger = logging.getLogger(__name__)

Hook = Callable[..., None]


def prepare(
    model: nn.Module, strategy: str = "ddp", *, mesh: Mapping[str, int] | None = None, **options: Any
) -> nn.Module:
    """Move the model to this rank's device, give it rank 0's weights and wrap it.

    Build the optimizer after it. From the first call on each rank draws random numbers of its own, if
    dt.init was given a seed; what was drawn before is the same on all ranks. The first training batch is
    run twice (see warmup.py). Gradients of an uneven batch of dt.loader are weighted by its samples where
    they are added to `.grad`.

    Args:
        model: any module; with one process it is returned unwrapped, on the device.
        strategy: a name that the registry finds.
        mesh: sizes of the strategy's dimensions by name, {"replicate": 2, "shard": 4} for hsdp; they multiply
            to the number of ranks.
        options: the strategy's own, for instance static_graph=True for ddp.

    Raises:
        ConfigError: before dt.init, for an unknown strategy or option, for a model prepared twice, spread
            over several devices, or with lazy parameters.
    """
    run = current()
    if run is None:
        raise ConfigError(
            "dt.prepare was called outside a run", hint="call dt.init() first, and close it last"
        )
    if is_wrapped(model):
        raise ConfigError(
            f"this {type(model).__name__} is wrapped already", hint="prepare the plain model, once"
        )
    chosen = load_strategy(strategy)
    checked = check_options(chosen, {**options, **_sizes(chosen, mesh or {})})
    if run.world_size == 1 and not works_alone(chosen):
        logger.debug("one process: strategy 'single' in place of %r", chosen.name)
        chosen = load_strategy("single")
        checked = chosen.Options()
    place = place_of(chosen, checked, run.rank, run.world_size)
    if mesh is not None:
        check_mesh(chosen, place, mesh)
    run.take_place(place)
    refuse_lazy_parameters(model)
    refuse_split_model(model, run.device)
    watch_batch_norm(model)
    placed = model if places_model(chosen) else model.to(run.device)
    wrapped = _hooked(chosen.wrap(placed, run, checked), chosen, run)
    remember_strategy(wrapped, chosen)
    run.seed_this_rank()
    return wrapped


def _sizes(strategy: Strategy, mesh: Mapping[str, int]) -> dict[str, int]:
    """Those that are options of the strategy; the others follow from the number of ranks."""
    return {name: size for name, size in mesh.items() if name in strategy.Options.model_fields}


def check_mesh(strategy: Strategy, place: Place, mesh: Mapping[str, int]) -> None:
    """Raise ConfigError where a strategy's mesh has not these dimensions, or not of these sizes.

    Args:
        strategy: the one in use; with one process it may be another one than was asked for.
        place: of this rank.
        mesh: wanted sizes by name.
    """
    there = dict(place.mesh)
    if place.world_size == 1 and all(size == 1 for size in mesh.values()):
        return
    if there != dict(mesh):
        wanted, found = (", ".join(f"{name} {size}" for name, size in each.items()) for each in (mesh, there))
        raise ConfigError(
            f"strategy {strategy.name!r} has the mesh {found} on {place.world_size} rank(s), not {wanted}",
            hint="name each of its dimensions; the sizes multiply to nodes x ranks per node",
        )


def load_strategy(name: str) -> Strategy:
    """The strategy that the registry finds under this name."""
    found = registry.load("strategies", name)
    if not isinstance(found, Strategy):
        raise ConfigError(f"strategy {name!r} does not follow the protocol of strategies/base.py")
    return found


def check_options(strategy: Strategy, options: dict[str, Any]) -> StrategyOptions:
    """Check options against the strategy's model; ConfigError names a wrong one and the nearest right one."""
    try:
        return strategy.Options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = list(strategy.Options.model_fields)
        if first["type"] == "extra_forbidden":
            near = nearest(name, known)
            raise ConfigError(
                f"strategy {strategy.name!r} has no option {name!r}",
                cause=f"it has {', '.join(known) or 'none'}",
                hint=f"did you mean {near!r}?" if near else None,
            ) from None
        from dist_train.config.problems import what_is_wrong

        wrong = what_is_wrong(first)
        wrong = wrong[:1].lower() + wrong[1:]
        raise ConfigError(
            f"option {name}={first['input']!r} of strategy {strategy.name!r}: {wrong}"
        ) from None


def _hooked(wrapped: nn.Module, strategy: Strategy, run: Run) -> nn.Module:
    alone = run.world_size == 1
    if alone or (strategy.averages and not runs_steps(strategy)):
        run.gradients.track(wrapped)
    else:
        run.gradients.exchanged_otherwise(wrapped)
    if alone:
        return wrapped
    if sharded_modules(wrapped):
        run.evaluation_buffers.track_spread(wrapped)
    ddp = find_ddp(wrapped)
    if ddp is not None:
        run.evaluation_buffers.track(ddp)
        warm = WarmUpOnFirstBatch()
        warm.handle = wrapped.register_forward_pre_hook(_untraced(warm), with_kwargs=True)

    def before_forward(module: nn.Module, args: Any) -> None:
        run.gradients.forward_seen(module)
        if ddp is not None:
            run.evaluation_buffers.before_forward(ddp)

    wrapped.register_forward_pre_hook(_untraced(before_forward))
    return wrapped


def _untraced(hook: Hook) -> Hook:
    """The hook, left out of what torch.compile makes of the model.

    Neither is worth tracing, and the discarded step must not be compiled into the model.
    (torch.compiler.disable alone would cost some 10 us at each call of a model that is not compiled.)
    """
    disabled = cast("Hook", cast("Any", torch.compiler.disable)(hook))

    def call(*args: Any) -> None:
        (disabled if torch.compiler.is_compiling() else hook)(*args)

    return call
