"""What a callback is: code of yours that the trainer calls at fixed points of the training.

    trainer:
      callbacks:
        - early_stopping
        - target: my_package.my_module:PrintNorm
          args: {every_steps: 100}

Every rank makes every callback and calls it, in the order of the list. A callback may read everything and may
keep state; four rules keep the run reproducible, and the trainer checks them (callback_rules.py):

1. It draws from no global RNG (python's, NumPy's, torch's): a generator of its own changes nothing else.
   Torch's state is compared around every call, python's and NumPy's around the first calls of each hook and
   every 16th later one (comparing them costs some 50 microseconds).
2. A collective is run by all ranks or by none: not under `if context.run.is_main`. One that other ranks do
   not run is refused before it begins, with the callback's name.
3. `state_dict()` holds whatever later calls depend on, the same on all ranks: it is saved in the checkpoint.
   State that changes in `on_checkpoint`, `on_stop` or `on_end` comes too late for that; so does a request to
   stop, which `on_checkpoint` refuses.
4. What it decides is the same on all ranks; `context.request_stop` may be called on any.

What a callback raises ends the run as any exception of the user's code; a note names the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.optim import Optimizer


class LogValues(Protocol):
    """`run.log` of a callback."""

    def __call__(self, *, step: int, **values: Any) -> None:
        """Record values of a step, as numbers or one-element tensors; rank 0 writes them."""


@dataclass(frozen=True)
class CallbackRun:
    """The run as a callback sees it.

    Args:
        device: of this rank.
        directory: the run directory: a callback may make files there.
        log: records values for metrics.jsonl and every other sink, as kind `callback`.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    directory: Path
    log: LogValues

    @property
    def is_main(self) -> bool:
        """True on rank 0: for what must happen once in the job."""
        return self.rank == 0


@dataclass(frozen=True)
class CallbackContext:
    """The state of the training at one call.

    Args:
        step: optimizer steps done.
        epoch: number of the epoch (0, 1, …) that this step belongs to.
        total_steps: optimizer steps of the whole run.
        model: the user's own module, without the strategy's wrapper.
        metrics: loss and metrics of the newest training record; empty before the first one.
        request_stop: ends the training early, with a result, once all ranks have agreed: at this step if it
            is logged, evaluated or saved, otherwise at the next such step. Takes the reason. Not in
            `on_checkpoint`: the checkpoint does not hold the request.
    """

    run: CallbackRun
    step: int
    epoch: int
    total_steps: int
    model: nn.Module
    optimizer: Optimizer
    metrics: Mapping[str, float]
    request_stop: Callable[[str], None]


class Callback:
    """Base class: every hook does nothing until it is overridden.

    A step calls `on_step_end`, then, where they are due, `on_evaluation_start`, `on_evaluation_end`, and
    `on_checkpoint`. `on_start` follows the restore from a checkpoint.

    Attributes:
        name: by which errors and the checkpoint know it; by default its class's. Unique in a run.
        checkpoint_key: the entry of the checkpoint that holds its state; by default a part of `callbacks`.
    """

    name: ClassVar[str] = "Callback"
    checkpoint_key: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def on_start(self, context: CallbackContext) -> None:
        """Training begins or goes on; nothing of this attempt is trained yet."""

    def on_step_end(self, context: CallbackContext) -> None:
        """An optimizer step is done."""

    def on_evaluation_start(self, context: CallbackContext) -> None:
        """An evaluation begins: it sees the weights as this hook leaves them."""

    def on_evaluation_end(self, context: CallbackContext, metrics: Mapping[str, float]) -> None:
        """An evaluation is done; `metrics` holds its loss and metrics, equal on all ranks."""

    def on_checkpoint(self, context: CallbackContext, step: int) -> None:
        """The checkpoint of `step` is committed; written in the background, it is of an earlier step."""

    def on_stop(self, context: CallbackContext) -> None:
        """The run was asked to save and stop (a preemption); the save follows."""

    def on_end(self, context: CallbackContext) -> None:
        """Training is over and all is saved; also in an attempt that finds it over."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: None, numbers, strings, lists, dicts and tensors, the same on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint; called before `on_start`, and not where there is none."""
