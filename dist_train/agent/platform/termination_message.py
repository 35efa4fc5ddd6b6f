"""The termination message of an agent's container: a JSON record of how the agent ended.

The launcher sees no run directory: only from this record does it know the exit code, the cause and the
step from which a resume goes on. Kubernetes keeps 4096 bytes of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dist_train import env
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.base_platform import NODE_RANK_VARIABLES
from dist_train.agent.settings import Settings
from dist_train.errors import ExitCode
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.records import SCHEMA_VERSION, read_json
from dist_train.rundir.stop_text import preempted_text

LIMIT_BYTES = 4000
_FILE = "/dev/termination-log"
_LONGEST_LINE = 300


def write_termination_message(end: AgentExit, settings: Settings | None, environ: Mapping[str, str]) -> None:
    """Write the record; a failure to do so is only printed."""
    given = environ.get(env.TERMINATION_LOG)
    try:
        # Kubernetes has mounted the file: it is written in place, and created nowhere else.
        flags = os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if given else 0)
        descriptor = os.open(given or _FILE, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_within_limit(exit_record(end, settings, environ)))
    except OSError as error:
        print(f"[dist-train] the termination message could not be written: {error}", file=sys.stderr)


def exit_record(end: AgentExit, settings: Settings | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Build the whole record; `settings` is None where the agent's settings were wrong."""
    index = next((value for name in NODE_RANK_VARIABLES if (value := environ.get(name))), "")
    node = settings.node if settings is not None else int(index) if index.isdigit() else None
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": environ.get(env.RUN_ID),
        "node": node,
        "attempt": end.attempt,
        "code": int(end.code),
        "why": end.why,
        "step": _step(settings),
        "failure": None if end.failure is None else end.failure.to_record(),
        "result": _result(settings) if end.code == ExitCode.OK else None,
    }


def encode_within_limit(record: dict[str, Any]) -> bytes:
    """Encode as compact JSON of at most LIMIT_BYTES: what says least about the cause is cut first."""
    record = json.loads(json.dumps(record))
    failure: dict[str, Any] = record["failure"] or {}
    lines = [line[:_LONGEST_LINE] for line in failure.get("log_tail", [])]
    failure |= {"log_tail": lines} if lines else {}
    # With a traceback the last lines of stderr mostly repeat it.
    keep = 0 if failure.get("traceback") else 5
    steps: list[Callable[[], bool]] = [
        lambda: _shorten(failure, "log_tail", keep, lambda lines: lines[1:]),
        lambda: _shorten(failure, "traceback", 1500, _without_head),
        lambda: _shorten(failure, "victims", 8, lambda ranks: ranks[: len(ranks) * 3 // 4]),
        lambda: _shorten(failure, "message", 800, _without_end),
        lambda: _shorten(record, "why", 500, _without_end),
        lambda: _shorten(failure, "log_tail", 0, lambda lines: lines[1:]),
        lambda: _shorten(failure, "traceback", 200, _without_head),
        lambda: _shorten(failure, "message", 200, _without_end),
    ]
    for shorten in steps:
        while len(payload := _encoded(record)) > LIMIT_BYTES and shorten():
            pass
    return payload if len(payload) <= LIMIT_BYTES else _encoded({**record, "failure": None, "result": None})


def preemption_reason(settings: Settings, attempt: int | None, why: str) -> str:
    """The error text of this node's first rank on its stop: at which step, and whether it could save."""
    return preempted_text(settings.run, attempt, settings.node * settings.procs) or why


def _result(settings: Settings | None) -> dict[str, Any] | None:
    """Read result.json; a plain script writes none."""
    try:
        return None if settings is None else read_json(settings.run.result)
    except (OSError, ValueError):
        return None


def _step(settings: Settings | None) -> int | None:
    try:
        return None if settings is None else newest_step(settings.run)
    except OSError:
        return None


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _shorten(record: dict[str, Any], name: str, keep: int, shorter: Callable[[Any], Any]) -> bool:
    """Shorten one field by a step; False once it is no longer than `keep`."""
    value = record.get(name)
    if not value or len(value) <= keep:
        return False
    record[name] = shorter(value)
    return True


def _without_head(text: str) -> str:
    return "…" + text[len(text) // 10 + 2 :]


def _without_end(text: str) -> str:
    return text[: len(text) - len(text) // 10 - 2] + "…"
