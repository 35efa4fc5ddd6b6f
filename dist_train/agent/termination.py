"""How an agent ended, told to Kubernetes: the file that becomes the container's termination message.

Whoever launched the job sees no run directory: this record alone tells the exit code, the cause and the
step from which a resume goes on. Kubernetes keeps 4096 bytes of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dist_train import env
from dist_train.agent.settings import KUBERNETES, Settings
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure
from dist_train.rundir.progress import newest_step
from dist_train.rundir.records import SCHEMA_VERSION, read_json

LIMIT_BYTES = 4000
_FILE = "/dev/termination-log"
_LONGEST_LINE = 300


@dataclass(frozen=True)
class End:
    """How this agent leaves.

    Attributes:
        code: the run's, as `launch` returns it.
        leaves_with: the process's own exit code, where Kubernetes must be told another one.
    """

    code: int
    why: str
    failure: Failure | None = None
    attempt: int | None = None
    leaves_with: int | None = None

    @property
    def exit_code(self) -> int:
        """The process's own."""
        return self.code if self.leaves_with is None else self.leaves_with


def tell(end: End, told: Settings | None, environ: Mapping[str, str] | None = None) -> None:
    """Write the termination message, in a pod; where it cannot be written it is said, and no more."""
    environ = os.environ if environ is None else environ
    if environ.get(env.LAUNCHER) != KUBERNETES:
        return
    given = environ.get(env.TERMINATION_LOG)
    try:
        # Kubernetes has mounted the file: it is written in place, and made nowhere else.
        flags = os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if given else 0)
        descriptor = os.open(given or _FILE, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(message(record_of(end, told, environ)))
    except OSError as error:
        print(f"[dist-train] the termination message could not be written: {error}", file=sys.stderr)


def record_of(end: End, told: Settings | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """The whole record; `told` is None where the agent's own settings were wrong."""
    index = environ.get(env.NODE_RANK) or environ.get("JOB_COMPLETION_INDEX") or ""
    node = told.node if told is not None else int(index) if index.isdigit() else None
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": environ.get(env.RUN_ID),
        "node": node,
        "attempt": end.attempt,
        "code": int(end.code),
        "why": end.why,
        "step": _step(told),
        "failure": None if end.failure is None else end.failure.to_record(),
        "result": _result(told) if end.code == ExitCode.OK else None,
    }


def message(record: dict[str, Any]) -> bytes:
    """Compact JSON that fits: what says least about the cause is cut first."""
    record = json.loads(json.dumps(record))
    failure: dict[str, Any] = record["failure"] or {}
    lines = [line[:_LONGEST_LINE] for line in failure.get("log_tail", [])]
    failure |= {"log_tail": lines} if lines else {}
    # With a traceback the last lines of stderr are mostly that once more.
    keep = 0 if failure.get("traceback") else 5
    cuts: list[Callable[[], bool]] = [
        lambda: _cut(failure, "log_tail", keep, lambda lines: lines[1:]),
        lambda: _cut(failure, "traceback", 1500, _without_head),
        lambda: _cut(failure, "victims", 8, lambda ranks: ranks[: len(ranks) * 3 // 4]),
        lambda: _cut(failure, "message", 800, _without_end),
        lambda: _cut(record, "why", 500, _without_end),
        lambda: _cut(failure, "log_tail", 0, lambda lines: lines[1:]),
        lambda: _cut(failure, "traceback", 200, _without_head),
        lambda: _cut(failure, "message", 200, _without_end),
    ]
    for cut in cuts:
        while len(payload := _encoded(record)) > LIMIT_BYTES and cut():
            pass
    return payload if len(payload) <= LIMIT_BYTES else _encoded({**record, "failure": None, "result": None})


def why_preempted(told: Settings, attempt: int | None, why: str) -> str:
    """A rank's own words on its stop: at which step, and whether a save was possible."""
    rank = told.node * told.procs
    path = told.run.attempts / str(attempt) / f"error-rank-{rank}.json"
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return why
    return str(record.get("text") or why) if record.get("exception") == "Preempted" else why


def of_error(code: int, error: Exception, told: Settings | None) -> End:
    """An agent that ended by itself, with the cause and the mend."""
    failure = Failure(
        source="dist-train",
        cls="dist_train",
        node_rank=None if told is None else told.node,
        host="" if told is None else told.host,
        exit_code=code,
        message=str(error) or repr(error),
    )
    what = str(error).partition("\n")[0] or repr(error)
    return End(code, what, None if code == ExitCode.PREEMPTED else failure)


def _result(told: Settings | None) -> dict[str, Any] | None:
    """result.json; a plain script writes none."""
    try:
        return None if told is None else read_json(told.run.result)
    except (OSError, ValueError):
        return None


def _step(told: Settings | None) -> int | None:
    try:
        return None if told is None else newest_step(told.run)
    except OSError:
        return None


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _cut(record: dict[str, Any], name: str, keep: int, shorter: Callable[[Any], Any]) -> bool:
    """Whether it was longer than what is kept, and so was cut."""
    value = record.get(name)
    if not value or len(value) <= keep:
        return False
    record[name] = shorter(value)
    return True


def _without_head(text: str) -> str:
    return "…" + text[len(text) // 10 + 2 :]


def _without_end(text: str) -> str:
    return text[: len(text) - len(text) // 10 - 2] + "…"
