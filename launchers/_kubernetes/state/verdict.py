"""The verdict of an agent: the JSON that it writes to /dev/termination-log when it ends."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any

from dist_train.rundir.failure import Failure
from dist_train.rundir.outcome_text import root_cause_name


@dataclass(frozen=True)
class Verdict:
    """How an agent and the run have ended, by the agent of `node`. `code`: the exit code of `launch`."""

    code: int
    why: str = ""
    node: int = 0
    attempt: int | None = None
    step: int | None = None
    failure: Failure | None = None
    result: dict[str, Any] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal on request has ended a script that does not read the stop flag."""
        return self.failure is None and self.code == 128 + signal.SIGTERM

    @property
    def text(self) -> str:
        """Which rank failed, why the run ended, which step was saved; for a person."""
        failure = self.failure
        failed = "" if failure is None else f"{root_cause_name(failure)}: {failure.message}"
        step = "" if self.step is None or f"step {self.step}" in self.why else f"step {self.step}"
        return "; ".join(part for part in (failed, self.why, step) if part)

    def to_record(self) -> dict[str, Any]:
        """Return the record as the agent wrote it."""
        failure = None if self.failure is None else self.failure.to_record()
        named = {name: getattr(self, name) for name in ("code", "why", "node", "attempt", "step", "result")}
        return {**named, "failure": failure}


def read_verdict(message: str) -> Verdict | None:
    """Parse a termination message; None for other text (a log's last lines, a runtime error)."""
    try:
        record = json.loads(message)
        code = int(record["code"])
    except (ValueError, KeyError, TypeError):
        return None
    return Verdict(
        code=code,
        why=str(record.get("why") or ""),
        node=_number(record.get("node")) or 0,
        attempt=_number(record.get("attempt")),
        step=_number(record.get("step")),
        failure=_failure(record.get("failure")),
        result=record["result"] if isinstance(record.get("result"), dict) else None,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _failure(record: object) -> Failure | None:
    if not isinstance(record, dict):
        return None
    try:
        return Failure.from_record(record)
    except (KeyError, TypeError):
        return None
