"""Which states of a followed job are printed: changes at once, the same reason at doubling intervals."""

from __future__ import annotations

from dataclasses import dataclass

from dist_train.jobs import JobState
from launchers._kubernetes.state.reason_kind import reason_kind

# From the first line of a reason to its second, where its text changes all the time.
_AGAIN_S = 30.0


@dataclass
class _Printed:
    again_at: float
    wait_s: float


class PrintedStates:
    """Makes the lines of one job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._phase = ""
        self._printed: dict[str, _Printed] = {}
        self._last = ""

    def line(self, state: JobState, now: float) -> str | None:
        """Return the line to print at `now` (seconds of any clock), None where there is nothing new."""
        text = self._text(state)
        if state.phase != self._phase:
            self._phase, self._printed = state.phase, {}
        elif text == self._last:
            return None
        kind = reason_kind(text)
        before = self._printed.get(kind)
        if before is not None and now < before.again_at:
            return None
        wait_s = _AGAIN_S if before is None else 2 * before.wait_s
        self._printed[kind] = _Printed(now + wait_s, wait_s)
        self._last = text
        return text if state.exit_code != 0 else None

    def _text(self, state: JobState) -> str:
        text = f"job {self._job} is {state.phase}" + (f": {state.detail}" if state.detail else "")
        return f"{text}  ({state.next[0]})" if state.next else text
