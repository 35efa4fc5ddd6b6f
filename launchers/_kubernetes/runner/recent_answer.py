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
        self._answers: list[T] = []
        self._error: Exception = RuntimeError("nothing was asked")

    def get(self) -> T:
        """The answer; raises what the question raised."""
        with self._lock:
            changes, now = self._changes(), time.monotonic()
            if self._at is None or self._at[1] != changes or now - self._at[0] >= FRESH_S:
                self._renew()
                self._at = (time.monotonic(), changes)
            if not self._answers:
                raise self._error
            return self._answers[0]

    def _renew(self) -> None:
        self._answers = []
        try:
            self._answers = [self._ask()]
        except (Unreachable, Forbidden) as error:
            self._error = error
