"""Ranks fail together: an error on one reaches all, so that none waits for a collective that never comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dist_train.checkpoint.damage import Damaged, ReplicaMismatch, Unsupported
from dist_train.errors import CheckpointError, CheckpointWriteError, DistTrainError

if TYPE_CHECKING:
    from dist_train.distributed.control import Control, JsonValue

T = TypeVar("T")

_KINDS: dict[str, type[DistTrainError]] = {
    kind.__name__: kind
    for kind in (CheckpointError, CheckpointWriteError, Damaged, Unsupported, ReplicaMismatch)
}


def on_every_rank(control: Control, work: Callable[[], T]) -> T:
    """Do `work` on each rank; if it fails on any, every rank raises (collective)."""
    value: T | None = None
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:
        failure = error
    outcomes = control.all_gather(_to_json(failure))
    if failure is not None:
        raise failure
    for rank, outcome in enumerate(outcomes):
        if outcome is not None:
            raise _from_json(rank, outcome)
    return value  # type: ignore[return-value]


def on_rank_zero(control: Control, work: Callable[[], JsonValue]) -> JsonValue:
    """Do `work` on rank 0 only; its value, or its failure, on every rank (collective)."""
    value: JsonValue = None
    failure: Exception | None = None
    if control.is_main:
        try:
            value = work()
        except Exception as error:
            failure = error
    answer = control.broadcast([value, _to_json(failure)])
    if failure is not None:
        raise failure
    assert isinstance(answer, list)
    if answer[1] is not None:
        raise _from_json(0, answer[1])
    return answer[0]


def _to_json(error: Exception | None) -> JsonValue:
    if error is None:
        return None
    if isinstance(error, DistTrainError):
        return {"kind": type(error).__name__, "what": error.what, "cause": error.cause, "mend": error.mend}
    return {"kind": "", "what": f"{type(error).__name__}: {error}", "cause": None, "mend": None}


def _from_json(rank: int, outcome: JsonValue) -> DistTrainError:
    assert isinstance(outcome, dict)
    what, cause, mend = (outcome[key] for key in ("what", "cause", "mend"))
    error = _KINDS.get(str(outcome["kind"]), DistTrainError)(f"on rank {rank}: {what}")
    error.cause = None if cause is None else str(cause)
    error.mend = None if mend is None else str(mend)
    return error
