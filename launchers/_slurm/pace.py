"""How often Slurm is asked: sites ban those who poll (2 s at first, 60 s while nothing changes)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from dist_train.jobs import JobHandle
from launchers._slurm.queries import Answer, look

FIRST_S = 2.0
LONGEST_S = 60.0


class Pace:
    """Remembers one job's last answer until it is time to ask again, or until something has happened."""

    def __init__(
        self, look: Callable[[JobHandle], Answer] = look, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._answer: Answer | None = None
        self._asked_at = 0.0
        self._wait_s = FIRST_S
        self._happened: Hashable = None

    def ask(self, handle: JobHandle, happened: Hashable = None) -> Answer:
        """The last answer, or a new one.

        Args:
            happened: whatever tells that the job's own records have changed; a change is reason to
                ask again after the shortest wait.
        """
        waited = self._clock() - self._asked_at
        changed = happened != self._happened
        if self._answer is not None and waited < (FIRST_S if changed else self._wait_s):
            return self._answer
        answer = self._look(handle)
        same = answer == self._answer and not changed
        self._wait_s = min(LONGEST_S, self._wait_s * 1.5) if same else FIRST_S
        self._answer, self._asked_at, self._happened = answer, self._clock(), happened
        return answer
