"""Let rank 0 do a thing that no other rank takes part in, whether the others call too or not.

What rank 0 has done is announced in the job's store, and rank 0 waits for nobody: `if run.is_main:` around
the call works, and where every rank calls, the others return when it is done, or raise rank 0's error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dist_train.checkpoint.agreement import error_from_json, error_to_json
from dist_train.errors import UsageError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control
    from dist_train.distributed.stores.torch_stores import Store

# How long another rank waits for rank 0 to begin; as long as collectives wait by default.
BEGIN_S = 600.0
_ASK_AGAIN_S = 60.0
_calls: WeakKeyDictionary[Control, Counter[str]] = WeakKeyDictionary()


def by_rank_zero(control: Control, what: str, work: Callable[[], None]) -> None:
    """Call `work` on rank 0; on another rank wait until rank 0 has made its call of this number.

    Args:
        control: the job's.
        what: the same on all ranks, such as the call with its path.
        work: done on rank 0 alone.

    Raises:
        UsageError: rank 0 did not begin.
    """
    if control.store is None:
        # One process; a group that the caller made has no store of ours: then rank 0 is not waited for.
        if control.is_main:
            work()
        return
    calls = _calls.setdefault(control, Counter())
    calls[what] += 1
    key = f"by-rank-zero/{what}/{calls[what]}"
    if not control.is_main:
        _wait(control.store, key, what, control.rank)
        return
    control.store.set(f"{key}/begun", "")
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
        raise
    finally:
        control.store.set(f"{key}/done", json.dumps(error_to_json(failure)))


def _wait(store: Store, key: str, what: str, rank: int) -> None:
    if not _appears(store, f"{key}/begun", BEGIN_S):
        raise UsageError(
            f"{what} on rank {rank}: rank 0 has not called it for {BEGIN_S:.0f} s, and rank 0 is who writes",
            hint="call it on every rank with the same path, or under `if run.is_main:`",
        )
    # A dead rank 0 ends the job; while it lives, the write takes as long as it takes.
    while not _appears(store, f"{key}/done", _ASK_AGAIN_S):
        pass
    outcome = json.loads(store.get(f"{key}/done"))
    if outcome is not None:
        raise error_from_json(0, outcome)


def _appears(store: Store, key: str, seconds: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        # A store that is gone raises the same class at once: the next call of it says so.
        store.check([key])
        return False
    return True
