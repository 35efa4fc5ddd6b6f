"""Fail on all ranks when one fails, so that none waits for a collective that the other never enters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dist_train.checkpoint.format.checkpoint_errors import (
    DamagedCheckpoint,
    ReplicaMismatch,
    UnsupportedCheckpoint,
)
from dist_train.errors import (
    CheckpointError,
    CheckpointWriteError,
    ConfigError,
    DistTrainError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

T = TypeVar("T")

_KINDS: dict[str, type[DistTrainError]] = {
    kind.__name__: kind
    for kind in (
        CheckpointError,
        CheckpointWriteError,
        ConfigError,
        NotFoundError,
        UnavailableError,
        UsageError,
        DamagedCheckpoint,
        UnsupportedCheckpoint,
        ReplicaMismatch,
    )
}


def on_every_rank(control: Control, work: Callable[[], T]) -> T:
    """Call `work` on each rank; if it fails on any, every rank raises (collective)."""
    return with_all_ranks(control, work, lambda _: None)[0]


def with_all_ranks(
    control: Control, work: Callable[[], T], say: Callable[[T], JsonValue]
) -> tuple[T, list[JsonValue]]:
    """`on_every_rank`; return besides what `say` makes of each rank's value (collective)."""
    value: T | None = None
    said: JsonValue = None
    failure: Exception | None = None
    try:
        value = work()
        said = say(value)
    except Exception as error:
        failure = error
    outcomes: list[Any] = control.all_gather([error_to_json(failure), said])
    if failure is not None:
        raise failure
    for rank, (outcome, _) in enumerate(outcomes):
        if outcome is not None:
            raise error_from_json(rank, outcome)
    return value, [said for _, said in outcomes]  # type: ignore[return-value]


def on_rank_zero(control: Control, work: Callable[[], JsonValue]) -> JsonValue:
    """Call `work` on rank 0 only; return its value, or raise its failure, on every rank (collective)."""
    value: JsonValue = None
    failure: Exception | None = None
    if control.is_main:
        try:
            value = work()
        except Exception as error:
            failure = error
    answer = control.broadcast([value, error_to_json(failure)])
    if failure is not None:
        raise failure
    assert isinstance(answer, list)
    if answer[1] is not None:
        raise error_from_json(0, answer[1])
    return answer[0]


def error_to_json(error: Exception | None) -> JsonValue:
    """Return an error as it travels between ranks; None for none."""
    if error is None:
        return None
    if isinstance(error, DistTrainError):
        return {"kind": type(error).__name__, "what": error.what, "cause": error.cause, "hint": error.hint}
    return {"kind": "", "what": f"{type(error).__name__}: {error}", "cause": None, "hint": None}


def error_from_json(rank: int, outcome: JsonValue) -> Exception:
    """Return the error of another rank, of its own class and under its rank.

    A RuntimeError for one of the user's code: each of ours has an exit code of its own, and would tell of
    a bug in dist-train here.
    """
    assert isinstance(outcome, dict)
    what, cause, hint = (outcome[key] for key in ("what", "cause", "hint"))
    if not outcome["kind"]:
        return RuntimeError(f"on rank {rank}: {what}")
    error = _KINDS.get(str(outcome["kind"]), DistTrainError)(f"on rank {rank}: {what}")
    error.cause = None if cause is None else str(cause)
    error.hint = None if hint is None else str(hint)
    return error
