"""The callbacks of a run: calls them in order, checks their rules, keeps their state for the checkpoint."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.rundir.directory import RunDir
from dist_train.trainer.callback import Callback, CallbackContext, CallbackRun
from dist_train.trainer.callback_rules import CollectiveCheck, RngSnapshot, check_rng, is_checked
from dist_train.trainer.training_position import Horizon

logger = logging.getLogger(__name__)

Hook = Literal[
    "on_start",
    "on_step_end",
    "on_evaluation_start",
    "on_evaluation_end",
    "on_checkpoint",
    "on_stop",
    "on_end",
]
HOOKS: tuple[Hook, ...] = Hook.__args__  # type: ignore[attr-defined]
# Entries of the checkpoint that the trainer writes; "optim" is the file of "optimizer".
_TRAINER_KEYS = frozenset({"model", "optimizer", "optim", "schedule", "loader", "callbacks", "non_finite"})


@dataclass(frozen=True)
class StopRequest:
    """Why the training ends before its last step."""

    callback: str
    reason: str

    def __str__(self) -> str:
        return f"{self.callback}: {self.reason}"


class CallbackHooks:
    """All callbacks of a run; without any, every call returns at once.

    Args:
        callbacks: in the order of their calls; equal on all ranks.
        model: unwrapped.
        metrics: gives loss and metrics of the newest training record.
        sinks: where `run.log` of a callback writes.
        timeout_s: how long a collective of a callback waits for the other ranks.

    Raises:
        ConfigError: something that is no Callback, or two of one name.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        run: Run,
        run_dir: RunDir,
        horizon: Horizon,
        model: nn.Module,
        optimizer: Optimizer,
        metrics: Callable[[], Mapping[str, float]],
        sinks: SinkFanout,
        timeout_s: float,
    ) -> None:
        check_callbacks(callbacks)
        self._callbacks = tuple(callbacks)
        self._run = run
        self._horizon = horizon
        self._model = model
        self._optimizer = optimizer
        self._metrics = metrics
        self._sinks = sinks
        self._calls: Counter[str] = Counter()
        names = [callback.name for callback in callbacks]
        self._collectives = CollectiveCheck(run.control, names, timeout_s)
        self._overriding = {hook: _overriding(self._callbacks, hook) for hook in HOOKS}
        self._requested: StopRequest | None = None
        self.stop: StopRequest | None = None
        self._view = CallbackRun(
            run.rank, run.local_rank, run.world_size, run.device, run_dir.path, self._log
        )

    def call(self, hook: Hook, step: int, *args: Any) -> None:
        """Call this hook of every callback that overrides it, after optimizer step `step`. Collective."""
        callbacks = self._overriding[hook]
        if not callbacks:
            return
        full = is_checked(self._calls[hook])
        self._calls[hook] += 1
        rng = RngSnapshot.take(full)
        for index, callback in callbacks:
            self._run.progress(f"the callback {callback.name} began {hook} of step {step}")
            try:
                with self._collectives.inside(index, hook):
                    getattr(callback, hook)(self._context(step, callback.name, hook), *args)
            except Exception as error:
                error.add_note(f"raised in {hook} of the callback {callback.name}, at step {step}")
                raise
            rng = check_rng(rng, full, callback.name, hook)
        if full:
            self._collectives.end(hook)
        self._run.progress(f"the callbacks of step {step}")

    def agree_to_stop(self) -> bool:
        """Whether a callback of any rank has asked to end the training; then `stop` says why. Collective."""
        if self._callbacks and self._run.control.max_int(int(self._requested is not None)):
            asked = self._requested
            own: JsonValue = None if asked is None else [asked.callback, asked.reason]
            first = next(found for found in self._run.control.all_gather(own) if isinstance(found, list))
            self.stop = StopRequest(*map(str, first))
        return self.stop is not None

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds of them, by the state's keys; nothing without callbacks."""
        own = {
            one.checkpoint_key: _Entry(partial(_state_of, one), one.load_state_dict)
            for one in self._callbacks
            if one.checkpoint_key is not None
        }
        return {"callbacks": _Entry(self.state_dict, self.load_state_dict), **own} if self._callbacks else {}

    def state_dict(self) -> dict[str, Any]:
        """The state of those without an entry of their own, and why the training has ended."""
        stop = None if self.stop is None else [self.stop.callback, self.stop.reason]
        return {
            "names": [callback.name for callback in self._callbacks],
            "states": {one.name: _state_of(one) for one in self._callbacks if one.checkpoint_key is None},
            "stop": stop,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand each its state; callbacks that only one of run and checkpoint has are logged."""
        names, saved = [callback.name for callback in self._callbacks], list(state["names"])
        for callback in self._callbacks:
            if callback.name in state["states"] and callback.checkpoint_key is None:
                callback.load_state_dict(state["states"][callback.name])
        # A request of a callback that is no longer listed does not hold: its removal lets the training go on.
        if state["stop"] is not None and state["stop"][0] in names:
            self.stop = StopRequest(*state["stop"])
        if self._run.is_main and names != saved:
            logger.warning(
                "the callbacks are %s and were %s at the save: a new one begins without state, "
                "and the state of one that is gone is dropped",
                ", ".join(names),
                ", ".join(saved),
            )

    def _context(self, step: int, name: str, hook: Hook) -> CallbackContext:
        def request_stop(reason: str) -> None:
            if hook == "on_checkpoint":
                raise ConfigError(
                    f"the callback {name} asked to stop in on_checkpoint",
                    cause="the checkpoint does not hold the request: a restart from it would train on",
                    hint="ask in on_step_end or on_evaluation_end",
                )
            self._requested = self._requested or StopRequest(name, reason)

        return CallbackContext(
            run=self._view,
            step=step,
            epoch=self._horizon.epoch_of(step) if step else 0,
            total_steps=self._horizon.total_steps,
            model=self._model,
            optimizer=self._optimizer,
            metrics=MappingProxyType(dict(self._metrics())),
            request_stop=request_stop,
        )

    def _log(self, *, step: int, **values: Any) -> None:
        if self._run.is_main:
            plain = {
                name: value.item() if hasattr(value, "item") else value for name, value in values.items()
            }
            epoch = self._horizon.epoch_of(step) if step else 0
            self._sinks.record({**plain, "kind": "callback", "step": step, "epoch": epoch})


class _Entry:
    """One entry of the checkpoint: of all callbacks, or of one."""

    # A checkpoint from before the callbacks still opens, and so does one with more of them.
    optional_in_checkpoint = True

    def __init__(self, save: Callable[[], dict[str, Any]], load: Callable[[Mapping[str, Any]], None]) -> None:
        self.state_dict = save
        self.load_state_dict = load


def _state_of(callback: Callback) -> dict[str, Any]:
    """The callback's state; reading it must draw from no global RNG, as a hook must not."""
    before = RngSnapshot.take(full=True)
    state = callback.state_dict()
    check_rng(before, True, callback.name, "state_dict")
    return state


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Raise ConfigError for an object that is no Callback, and for two of one name or checkpoint entry."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"trainer.callbacks: a {type(callback).__name__} is no Callback",
                hint="derive its class from dist_train.trainer.Callback",
            )
    found = [callback for callback in callbacks if isinstance(callback, Callback)]
    for what in ("name", "checkpoint_key"):
        used = Counter(getattr(callback, what) for callback in found if getattr(callback, what) is not None)
        twice = [word for word, count in used.items() if count > 1]
        if twice:
            raise ConfigError(
                f"trainer.callbacks: two have the {what} {twice[0]!r}",
                cause="errors and the checkpoint know each by it",
                hint="list it once, or derive a class with a name of its own",
            )
    for callback in found:
        if callback.checkpoint_key in _TRAINER_KEYS:
            raise ConfigError(
                f"trainer.callbacks: {callback.name} has the checkpoint_key {callback.checkpoint_key!r}",
                cause="the trainer's own entry of the checkpoint has this name",
                hint="choose another one",
            )


def _overriding(callbacks: Sequence[Callback], hook: Hook) -> list[tuple[int, Callback]]:
    own = getattr(Callback, hook)
    return [(index, one) for index, one in enumerate(callbacks) if getattr(type(one), hook) is not own]
