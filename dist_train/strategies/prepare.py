"""dt.prepare: a model made to train on all ranks."""

from __future__ import annotations

import difflib
import logging
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import nn

from dist_train import registry
from dist_train.distributed.run import Run, current
from dist_train.errors import ConfigError
from dist_train.strategies.base import Strategy, StrategyOptions, is_for_one_process
from dist_train.strategies.unwrap import find_ddp, is_wrapped
from dist_train.strategies.warmup import WarmUpOnFirstBatch
from dist_train.strategies.weighting import ShareWeighting

logger = logging.getLogger(__name__)


def prepare(model: nn.Module, strategy: str = "ddp", **options: Any) -> nn.Module:
    """Move the model to this rank's device, give it rank 0's weights and wrap it.

    Build the optimizer after it. The first training batch is run twice (see warmup.py), and the
    gradient of an uneven share of dt.loader is weighted by its samples.

    Args:
        model: any module; with one process it is returned unwrapped, on the device.
        strategy: a name that the registry finds.
        options: the strategy's own, for instance static_graph=True for ddp.

    Raises:
        ConfigError: before dt.init, for an unknown strategy or option, for a model prepared twice.
    """
    run = current()
    if run is None:
        raise ConfigError(
            "dt.prepare was called outside a run", mend="call dt.init() first, and close it last"
        )
    if is_wrapped(model):
        raise ConfigError(
            f"this {type(model).__name__} is wrapped already", mend="prepare the plain model, once"
        )
    chosen = load_strategy(strategy)
    checked = check_options(chosen, options)
    if run.world_size == 1 and not is_for_one_process(chosen):
        logger.debug("one process: strategy 'single' in place of %r", chosen.name)
        chosen = load_strategy("single")
        checked = chosen.Options()
    return _hooked(chosen.wrap(model.to(run.device), run, checked), chosen, run)


def load_strategy(name: str) -> Strategy:
    """The strategy that the registry finds under this name."""
    found = registry.load("strategies", name)
    if not isinstance(found, Strategy):
        raise ConfigError(f"strategy {name!r} does not follow the protocol of strategies/base.py")
    return found


def check_options(strategy: Strategy, options: dict[str, Any]) -> StrategyOptions:
    """The options as the strategy's model; ConfigError names the wrong one and the nearest right one."""
    try:
        return strategy.Options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = list(strategy.Options.model_fields)
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"strategy {strategy.name!r} has no option {name!r}",
                cause=f"it has {', '.join(known) or 'none'}",
                mend=f"did you mean {near[0]!r}?" if near else None,
            ) from None
        raise ConfigError(
            f"option {name}={first['input']!r} of strategy {strategy.name!r}: {first['msg'].lower()}"
        ) from None


def _hooked(wrapped: nn.Module, strategy: Strategy, run: Run) -> nn.Module:
    if run.world_size == 1:
        return wrapped
    # Neither hook is worth tracing, and the throw-away step must not be compiled into the model.
    if find_ddp(wrapped) is not None:
        warm = cast("Any", torch.compiler.disable)(WarmUpOnFirstBatch())
        wrapped.register_forward_pre_hook(warm, with_kwargs=True)
    if strategy.averages:
        wrapped.register_forward_hook(
            cast("Any", torch.compiler.disable)(ShareWeighting(run.share, run.world_size))
        )
    return wrapped
