"""What an agent told Kubernetes when it ended: the JSON in /dev/termination-log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dist_train.rundir.failure import Failure
from dist_train.rundir.report import guilty_name


@dataclass(frozen=True)
class Verdict:
    """How an agent ended, and with it the run, as node `node` saw it. `code` is what `launch` returns."""

    code: int
    why: str = ""
    node: int = 0
    attempt: int | None = None
    step: int | None = None
    failure: Failure | None = None
    result: dict[str, Any] | None = None

    @property
    def words(self) -> str:
        """Who failed, why it ended, what was saved; for a person."""
        failed = f"{guilty_name(self.failure)}: {self.failure.message}" if self.failure is not None else ""
        step = "" if self.step is None or f"step {self.step}" in self.why else f"step {self.step}"
        return "; ".join(part for part in (failed, self.why, step) if part)

    def to_record(self) -> dict[str, Any]:
        """As the agent wrote it."""
        failure = None if self.failure is None else self.failure.to_record()
        named = {name: getattr(self, name) for name in ("code", "why", "node", "attempt", "step", "result")}
        return {**named, "failure": failure}


def read_verdict(message: str) -> Verdict | None:
    """None for text of another writer (the last lines of a log, a container runtime's complaint)."""
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
