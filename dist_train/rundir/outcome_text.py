"""The end of a run as text: the failure block and the table of a result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dist_train.rundir.display_number import display_number
from dist_train.rundir.failure import Failure
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.result import Result
from dist_train.rundir.times.time_text import goodput_text, parts_text

RULE = "─" * 78


def render_failure(failure: Failure, exit_code: int) -> str:
    """Format the failure block: the root cause, the secondary failures in one line, what to run next."""
    who = root_cause_name(failure)
    lines = [RULE, f"FAILED: {who}: {failure.message}"]
    if failure.file is not None:
        lines.append(f"  at      {failure.file}:{failure.line}")
    if failure.exception is not None:
        lines.append(f"  error   {failure.exception}")
    step = "" if failure.step is None else f", step {failure.step}"
    lines.append(f"  where   attempt {display_number(failure.attempt)}{step}, exit code {exit_code}")
    if failure.hint is not None:
        lines.append(f"  hint    {failure.hint}")
    if failure.secondary_failures:
        lines.append(
            f"  also    {name_ranks(failure.secondary_failures)} ended because of it (secondary failures)"
        )
    tail = [line for line in failure.log_tail if line.strip()]
    if tail:
        lines += ["  its last lines:", *(f"  │ {line}" for line in tail)]
    if failure.log is not None:
        lines.append(f"  log     {failure.log}")
    lines += [f"  next    {command}" for command in failure.next]
    return "\n".join([*lines, RULE])


class HeadlinesOnly:
    """Reduce each failure block of a log to its headline: the last block is printed at the end."""

    def __init__(self) -> None:
        self._inside = False

    def shows(self, line: str) -> bool:
        """Whether to show a line of the log; lines are passed in their order."""
        if line == RULE:
            self._inside = not self._inside
            return False
        return not self._inside or line.startswith("FAILED: ")


def render_result(run_dir: Path, result: Result) -> str:
    """Format the table at the end of a successful run."""
    rows = [(name, f"{value:.4f}") for name, value in sorted(result.metrics.items())]
    rows += [
        (
            "steps",
            f"{result.steps}{_epochs(result)}, {result.world_size} ranks, attempt {result.attempts}",
        ),
        ("samples/s", f"{result.samples_per_s:,.0f}"),
        *([] if result.time is None else time_rows(result.time)),
        ("weights", result.weights_hash[:16]),
        ("run directory", str(run_dir)),
        ("next", f"dist-train status {run_dir}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def time_rows(time: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows `goodput` and `time` of a table."""
    return [("goodput", goodput_text(time)), ("time", parts_text(time))]


def _epochs(result: Result) -> str:
    if result.samples_in_epoch:
        return f", ended within epoch {display_number(result.epochs)}"
    return f" in {result.epochs} epoch" + ("" if result.epochs == 1 else "s")


def root_cause_name(failure: Failure) -> str:
    """`rank 3 (node 1, local rank 1) on host, pid 4711`; a node, or the job, where there is no rank."""
    if failure.rank is None:
        return f"node {failure.node_rank} on {failure.host}" if failure.node_rank is not None else "the job"
    pid = f", pid {failure.pid}" if failure.pid else ""
    place = f"node {failure.node_rank}, local rank {failure.local_rank}"
    return f"rank {failure.rank} ({place}) on {failure.host}{pid}"
