"""Ctrl-C before any agent has begun: nothing is saved, so that nothing has to wait."""

from __future__ import annotations

from pathlib import Path

from dist_train.errors import ExitCode
from dist_train.jobs.orphans import command_line
from dist_train.prewarm.agent_handle import IMPORT_TITLE, AgentProcess
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, newest_event
from dist_train.rundir.records import write_bytes_atomic


def still_imports(agent: AgentProcess) -> bool:
    """Whether it is still the process that imports torch early, which is no agent yet, or its fork to be."""
    return agent.pid == 0 or any(word.startswith(IMPORT_TITLE) for word in command_line(agent.pid))


def record_early_stop(run: RunDir, verdict_file: Path) -> None:
    """Record Ctrl-C as node 0 does, unless an attempt has begun or the stop is recorded.

    Args:
        run: an early stop has as its newest event that it was submitted, or that agents start again.
        verdict_file: of this start.
    """
    last = newest_event(run)
    if last is None or last["kind"] not in ("submitted", "restarted"):
        return
    write_bytes_atomic(verdict_file, f"{int(ExitCode.PREEMPTED)}\n".encode())
    why, code = "stopped before an attempt had begun", int(ExitCode.INTERRUPTED)
    append_event(run, "preempted", 0, step=None, why=why, exit_code=code)
