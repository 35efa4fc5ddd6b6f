"""One run at one moment: its state, the summary of its records, and the commands that make sense next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dist_train.cli.run.find_run import OpenedRun
from dist_train.cli.run.job_state import is_unknown, never_began, query_state
from dist_train.cli.run.run_summary import RunSummary, summarize
from dist_train.jobs.launcher import JobState
from dist_train.jobs.memory_kills import twice
from dist_train.rundir.failure import Failure
from dist_train.rundir.result import Result, read_result
from dist_train.rundir.times.read_times import read_times

_RESULT_KEYS = (
    *(
        "steps",
        "epochs",
        "samples",
        "samples_in_epoch",
        "metrics",
        "weights_hash",
        "state_hash",
        "metrics_hash",
    ),
    "samples_per_s",
)


@dataclass(frozen=True)
class RunStatus:
    """What `status` and `list` show of a run."""

    opened: OpenedRun
    state: JobState
    summary: RunSummary

    @property
    def failure(self) -> Failure | None:
        """Why it ended; None while it runs, also after a failure from which a restart recovered."""
        return self.summary.failure if self.state.phase == "failed" else None

    @property
    def result(self) -> Result | None:
        """The metrics and hashes of a run that is done."""
        return read_result(self.opened.run) if self.state.phase == "done" else None

    @property
    def time(self) -> dict[str, Any] | None:
        """Where the time went so far (`RunTime.to_record`); None where the records do not say."""
        try:
            found = read_times(self.opened.run, self.opened.spec.target.kind != "config")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if found is None else found.to_record()

    @property
    def next(self) -> list[str]:
        """Commands that make sense now: the scheduler's own first."""
        return [*self.state.next, *self._next_verbs()]

    def _next_verbs(self) -> list[str]:
        name = self.opened.short_name
        if self.state.phase in ("running", "requeued"):
            return [f"dist-train logs {name} --follow", f"dist-train cancel {name}"]
        if self.state.phase == "pending" and not never_began(self.opened, self.state):
            return [f"dist-train status {name}", f"dist-train cancel {name}"]
        if self.state.phase == "done":
            has_checkpoint = self.summary.checkpoint_step is not None
            return [f"dist-train checkpoint list {name}" if has_checkpoint else f"dist-train logs {name}"]
        if is_unknown(self.state):
            return [f"dist-train status {name}"]
        commands = [] if any(" --mem " in command for command in self.state.next) else [self._resume(name)]
        if self.failure is not None and self.failure.rank is not None:
            commands.insert(0, f"dist-train logs {name} --rank {self.failure.rank}")
        return commands

    def _resume(self, name: str) -> str:
        """Continue; with twice the memory where a limit was reached that the launcher can raise."""
        limit = None if self.failure is None else self.failure.memory_limit
        more = limit is not None and "mem" not in self.opened.launcher.refuses
        return f"dist-train resume {name}" + (f" --mem {twice(limit)}" if more and limit is not None else "")


def query_status(opened: OpenedRun) -> RunStatus:
    """Ask the launcher for the state, and read the run's records."""
    return RunStatus(opened, query_state(opened), summarize(opened.run))


def status_record(status: RunStatus) -> dict[str, Any]:
    """The object of `status --json`; `list --json` has one per run."""
    opened, state, summary = status.opened, status.state, status.summary
    result = status.result
    return {
        "name": opened.run.path.name,
        "run_id": opened.spec.run_id,
        "run_dir": opened.run.path,
        "launcher": opened.launcher.name,
        "handle": opened.handle.text,
        "nodes": opened.spec.nodes,
        "procs_per_node": opened.spec.procs_per_node,
        "device": opened.spec.device,
        "phase": state.phase,
        "source": state.source,
        "detail": state.detail,
        "nodes_now": list(state.nodes),
        "exit_code": state.exit_code,
        "attempt": summary.attempt,
        "restarts": summary.restarts,
        "max_restarts": opened.spec.max_restarts,
        "submitted_age_s": summary.submitted_age_s,
        "events_problem": summary.events_problem,
        "devices": [asdict(device) for device in summary.devices],
        "checkpoint": None
        if summary.checkpoint_step is None
        else {"step": summary.checkpoint_step, "age_s": summary.checkpoint_age_s},
        "time": status.time,
        "train": summary.train,
        "evaluation": summary.evaluation,
        "result": None if result is None else {key: getattr(result, key) for key in _RESULT_KEYS},
        "failure": None if status.failure is None else status.failure.to_record(),
        "next": status.next,
    }
