"""One answer of the API server for several threads that ask the same within a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from launchers._kubernetes.api.api_errors import Forbidden, Unreachable

T = TypeVar("T")
# Who follows N pods asks N times a round: for 1,000 pods that were 1,000 lists of 1,000 pods.
FRESH_S = 0.5


class RecentAnswer(Generic[T]):
    """Asks at most every FRESH_S, and at once after a change of the pods; an error is an answer too."""

    def __init__(self, ask: Callable[[], T], changes: Callable[[], int]) -> None:
        self._ask = ask
        self._changes = changes
        self._lock = threading.Lock()
        self._at: tuple[float, int] | None = None
        self._answer: Callable[[], T]

    def get(self) -> T:
        """The answer; raises what the question raised."""
        with self._lock:
            changes, now = self._changes(), time.monotonic()
            if self._at is None or self._at[1] != changes or now - self._at[0] >= FRESH_S:
                self._answer = self._new_answer()
                self._at = (time.monotonic(), changes)
            answer = self._answer
        return answer()

    def _new_answer(self) -> Callable[[], T]:
        try:
            found = self._ask()
        except (Unreachable, Forbidden) as error:
            return _raiser(error)
        return lambda: found


def _raiser(error: Exception) -> Callable[[], T]:
    def raise_it() -> T:
        raise error

    return raise_it
