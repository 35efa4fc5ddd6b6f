"""Write agent 0's records: attempts, events, the failure, the verdict, the lease."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from dist_train.agent import timeouts
from dist_train.agent.coordination.messages import Verdict
from dist_train.agent.failures.restart_policy import Decision, History, decide, decide_stop
from dist_train.agent.records.lease import Lease
from dist_train.agent.records.verdict_file import write_verdict
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError, ExitCode, NoProgressError, UnavailableError
from dist_train.jobs.memory_kills import twice
from dist_train.jobs.process_identity import process_age_s
from dist_train.rundir.committed_steps import committed_steps, newest_step
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.records import read_json, write_json_atomic
from dist_train.rundir.result import read_result, write_result
from dist_train.rundir.stop_text import preempted_text, saved_text
from dist_train.rundir.times.read_times import read_times

logger = logging.getLogger(__name__)
_POLL_S = 0.25
# Without a failure: cancelled, Ctrl-C, and a script that does not read the stop flag and got SIGTERM.
_ENDS_ON_REQUEST = (ExitCode.CANCELLED, ExitCode.INTERRUPTED, 128 + signal.SIGTERM)


class ClusterRules(Protocol):
    """What the cluster decides of these records; the agent's Platform implements it."""

    replaces_nodes: bool

    def lease(self, settings: Settings) -> Lease:
        """Return the lease by which agent 0 owns the run."""

    def scheduler_code(self, code: int, failure: Failure | None) -> int:
        """Return the exit code that the scheduler gets for the run's."""

    def run_reference(self, settings: Settings) -> str:
        """Return the run as commands in hints name it."""


class RunRecorder:
    """Writes the records of which agent 0 is the only writer; also watches for committed checkpoints."""

    def __init__(self, settings: Settings, rules: ClusterRules) -> None:
        self._settings = settings
        self._rules = rules
        self._run = settings.run
        self._lease = rules.lease(settings)
        self._attempt = 0
        self._began = False
        self._agent_started = time.time() - process_age_s()
        self._joins_since = time.time()
        self._stop = threading.Event()
        self._failing: dict[str, str] = {}
        self._seen = set(committed_steps(self._run))
        self._poller = threading.Thread(target=self._poll, name="agent-records", daemon=True)

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Take the lease and begin to watch for committed checkpoints; raises ConfigError if it is taken."""
        self._lease.take(give_up)
        self._joins_since = time.time()
        self._poller.start()

    def close(self) -> None:
        """Stop watching and release the lease."""
        self._stop.set()
        self._poller.join(timeout=2.0)
        self._lease.release()

    @property
    def superseded(self) -> str | None:
        """The later start of this job that has claimed the run, so that this one must end."""
        return self._lease.superseded()

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        """Number the attempt and record it; refuses changed code, and restarts that are used up."""
        self._account_for_lost_attempt()
        self._attempt = self._run.begin_attempt()
        self._began = True
        folder = self._run.attempts / str(self._attempt)
        self._refuse_changed_code(fingerprint)
        write_json_atomic(folder / "fingerprint.json", fingerprint)
        self._run.attempt_logs(self._attempt).mkdir(mode=0o700, exist_ok=True)
        append_event(
            self._run,
            "attempt_started",
            self._attempt,
            hosts=[node["host"] for node in nodes],
            nodes=nodes,
            job=self._settings.job,
            resume_step=newest_step(self._run),
            agent_started=self._agent_started,
            joins_since=self._joins_since,
        )
        return self._attempt

    def first_failure(self, failure: Failure) -> None:
        """Record the first report of a failure; the verdict may still name another rank."""
        append_event(
            self._run,
            "first_failure",
            self._attempt,
            rank=failure.rank,
            node_rank=failure.node_rank,
            failure_class=failure.cls,
            exit_code=failure.exit_code,
            step=failure.step,
            message=failure.message,
        )

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        """Apply the restart rule to the history in the run's events."""
        if not self._began:
            self._note_open_attempt()
        settings = self._settings
        decision = decide(
            failure, self._history(self._began), settings.max_restarts, settings.restart_on, stopping
        )
        if self._rules.replaces_nodes and failure.cls == "node_lost" and not decision.restart:
            return replace(decision, exit_code=failure.exit_code)  # the cluster counts the lost pod itself
        return decision

    def decide_stop(self) -> Decision:
        """Decide on a stop: 75, or 76 after three attempts without a newer committed step."""
        before = "stopped before an attempt had begun"
        if self._stopped_before_it_began:
            return Decision(False, ExitCode.PREEMPTED, before)
        decision = decide_stop(self._history())
        if decision.exit_code != ExitCode.PREEMPTED:
            return decision
        known = preempted_text(self._run, self._attempt, rank=0) if self._began else before
        return replace(decision, why=known or decision.why)

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        """Write failure.json, the event and, at the end, the verdict file."""
        if failure is not None:
            restarted = verdict.action == "restart" or verdict.exit_code == ExitCode.ATTEMPT_LOST
            self._write_failure(replace(failure, restarted=restarted, attempt=self._attempt))
        if verdict.action == "restart":
            self._note_restart(verdict.why, failure)
            return
        if verdict.exit_code == ExitCode.PREEMPTED and self._stopped_before_it_began:
            pass  # no attempt has ended: the last event is still the end of the one before
        elif verdict.exit_code == ExitCode.PREEMPTED:
            by_ctrl_c = self._run.interrupted(self._settings.job).exists()
            code = {"exit_code": int(ExitCode.INTERRUPTED)} if by_ctrl_c else {}
            step = newest_step(self._run)
            append_event(self._run, "preempted", self._attempt, step=step, why=verdict.why, **code)
        elif verdict.exit_code == ExitCode.ATTEMPT_LOST:
            self._note_loss_before_an_attempt(failure)
        else:
            self._note_end(verdict, failure)
            if verdict.exit_code == ExitCode.OK:
                self._try("where the time went is not in result.json", self._add_time_to_result)
        if verdict.exit_code not in (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST):
            self._run.secrets.unlink(missing_ok=True)
        write_verdict(self._settings, self._rules.scheduler_code(verdict.exit_code, failure))

    def _note_end(self, verdict: Verdict, failure: Failure | None) -> None:
        if failure is None and verdict.exit_code in _ENDS_ON_REQUEST:
            why = f"{verdict.why}; {saved_text(newest_step(self._run))}"
            fields: dict[str, object] = {"why": why, "stopped": True}
        else:
            fields = {"why": verdict.why}
        append_event(self._run, "finished", self._attempt, exit_code=verdict.exit_code, **fields)

    @property
    def _stopped_before_it_began(self) -> bool:
        """Nodes that are replaced come and go one by one: a stop while they gather uses up no attempt."""
        return self._rules.replaces_nodes and not self._began

    def _write_failure(self, failure: Failure) -> None:
        run = self._rules.run_reference(self._settings)
        more = ""
        if failure.memory_limit is not None and self._settings.memory_option:
            more = f" {self._settings.memory_option} {twice(failure.memory_limit)}"
        commands = [f"dist-train resume {run}{more}"]
        if failure.rank is not None:
            commands.insert(0, f"dist-train logs {run} --rank {failure.rank}")
        write_failure(self._run, replace(failure, next=tuple(commands)))

    def _note_restart(self, why: str, failure: Failure | None, **fields: object) -> None:
        append_event(
            self._run,
            "restarted",
            self._attempt,
            why=why,
            committed=newest_step(self._run),
            rank=failure.rank if failure else None,
            **fields,
        )

    def _note_loss_before_an_attempt(self, failure: Failure | None) -> None:
        """Count a start that lost a node while the nodes gathered; one that began is counted by the next."""
        if not self._began and failure is not None and failure.cls == "node_lost":
            self._note_restart("a node or its agent was lost before an attempt began", failure, began=False)

    def _history(self, ends_now: bool = True) -> History:
        """Read the history since the last submission: a resume begins a new count.

        Args:
            ends_now: an attempt ends now, whose committed steps count too.
        """
        restarts, committed = 0, list[int | None]()
        for event in read_events(self._run):
            match event["kind"]:
                case "submitted":
                    restarts, committed = 0, []
                case "restarted":
                    restarts += 1
                    if event.get("began", True):
                        committed.append(event.get("committed"))
                case "preempted":
                    committed.append(event.get("step"))
        keeps = self._settings.kind == "config" or bool(committed_steps(self._run))
        if ends_now:
            committed.append(newest_step(self._run))
        return History(restarts, tuple(committed), keeps)

    def _account_for_lost_attempt(self) -> None:
        """Count this start as a restart if the last attempt has no end: its agent 0 was lost."""
        if self._open_attempt() is None:
            return
        lost = Failure(source="dist-train", cls="node_lost", exit_code=ExitCode.UNAVAILABLE)
        settings = self._settings
        decision = decide(lost, self._history(), settings.max_restarts, settings.restart_on, stopping=False)
        if decision.exit_code == ExitCode.NO_PROGRESS:
            raise NoProgressError(decision.why)
        if decision.exit_code != ExitCode.ATTEMPT_LOST:
            raise UnavailableError(f"a node or its agent was lost again: {decision.why}")
        self._note_open_attempt()

    def _note_open_attempt(self) -> None:
        attempt = self._open_attempt()
        if attempt is not None:
            self._attempt = attempt
            self._note_restart("a node or its agent was lost", None, end_seen=False)

    def _open_attempt(self) -> int | None:
        """Return the last attempt if no end of it was recorded."""
        found = None
        for event in read_events(self._run):
            if event["kind"] == "attempt_started":
                found = int(event.get("attempt") or 0)
            elif event["kind"] in ("submitted", "preempted", "finished", "restarted"):
                found = None
        return found

    def _refuse_changed_code(self, fingerprint: dict[str, str]) -> None:
        before = self._last_fingerprint()
        if before is None or self._settings.accept_code_change:
            return
        changed = [key for key, value in fingerprint.items() if before.get(key, value) != value]
        if changed:
            changes = ", ".join(f"{key}: {before[key]} before, {fingerprint[key]} now" for key in changed)
            raise ConfigError(
                f"this attempt differs from the last one: {changes}",
                cause="a run that goes on with other code or another config is not the same run",
                hint=f"dist-train resume {self._run.path} --accept-code-change",
            )

    def _last_fingerprint(self) -> dict[str, str] | None:
        """Read the fingerprint of the newest attempt that was begun: a refused one leaves none."""
        for attempt in range(self._attempt - 1, -1, -1):
            found = read_json(self._run.attempts / str(attempt) / "fingerprint.json")
            if found is not None:
                return found
        return None

    def _poll(self) -> None:
        beat_at = time.monotonic() + timeouts.HEARTBEAT_S
        while not self._stop.wait(_POLL_S):
            self._try("the checkpoints cannot be listed or recorded", self._note_checkpoints)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + timeouts.HEARTBEAT_S
                self._try("the lease cannot be renewed", lambda: self._lease.beat(self._attempt))
        self._try("the checkpoints cannot be listed or recorded", self._note_checkpoints)

    def _try(self, what: str, call: Callable[[], None]) -> None:
        """Do what is done again at the next poll: no descriptor left and NFS's stale handles pass."""
        try:
            call()
        except OSError as error:
            if self._failing.get(what) != str(error):
                logger.warning("%s, and it is tried again: %s", what, error)
            self._failing[what] = str(error)
        else:
            self._failing.pop(what, None)

    def _add_time_to_result(self) -> None:
        """Rank 0 has ended, and only now the attempt's time is over."""
        result, times = read_result(self._run), read_times(self._run, self._settings.kind != "config")
        if result is not None and times is not None:
            write_result(self._run, replace(result, time=times.to_record()))

    def _note_checkpoints(self) -> None:
        steps = committed_steps(self._run)
        for step in steps:
            if step not in self._seen:
                append_event(self._run, "checkpoint_committed", self._attempt, step=step)
                self._seen.add(step)
        # A step that was quarantined may be committed again.
        self._seen = set(steps)
