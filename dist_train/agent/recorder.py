"""Agent 0's records: attempts, events, the failure, the verdict, the lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from dist_train.agent import bounds
from dist_train.agent.messages import Verdict
from dist_train.agent.pod_lease import lease_of
from dist_train.agent.policy import Decision, History, decide, decide_stop
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError, ExitCode, NoProgressError, UnavailableError
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.progress import committed_steps, newest_step
from dist_train.rundir.records import read_json, write_bytes_atomic, write_json_atomic

logger = logging.getLogger(__name__)
_POLL_S = 0.25
_OURS = range(66, 80)


def write_verdict(settings: Settings, code: int, why: str = "") -> None:
    """What the job's launcher reads: `control/verdict-<job>`, the code and, perhaps, the reason."""
    text = f"{int(code)} {' '.join(why.split())}".strip()
    write_bytes_atomic(settings.run.control / f"verdict-{settings.job}", f"{text}\n".encode())


def code_for_scheduler(launcher: str, code: int, failure: Failure | None) -> int:
    """A rank's own 66 to 79 must not mean to a scheduler what they mean among us."""
    own = failure is not None and failure.source == "rank" and code in _OURS
    return int(ExitCode.EARLY_EXIT) if own and launcher != "local" else code


class RunRecorder:
    """Writes the run directory's records of which agent 0 is the one writer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._run = settings.run
        self._lease = lease_of(settings)
        self._attempt = 0
        self._began = False
        self._stop = threading.Event()
        self._seen = set(committed_steps(self._run))
        self._poller = threading.Thread(target=self._poll, name="agent-records", daemon=True)

    def start(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Take the lease and begin to watch for committed checkpoints; raises ConfigError if it is held."""
        self._lease.take(give_up)
        self._poller.start()

    def close(self) -> None:
        """Stop watching and give the lease back."""
        self._stop.set()
        self._poller.join(timeout=2.0)
        self._lease.give_back()

    @property
    def superseded(self) -> str | None:
        """The later start of this job that has claimed the run: this one must go."""
        return self._lease.superseded()

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        """Take the attempt's number; refuses changed code, and restarts that are used up."""
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
        )
        return self._attempt

    def first_failure(self, failure: Failure) -> None:
        """Note the first report; the verdict may still name another rank."""
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
        """Apply the restart rule to what the events tell of this run."""
        settings = self._settings
        return decide(failure, self._history(), settings.max_restarts, settings.restart_on, stopping)

    def decide_stop(self) -> Decision:
        """75, or 76 after three attempts that brought no newer committed step."""
        if self._stopped_before_it_began:
            return Decision(False, ExitCode.PREEMPTED, "stopped before an attempt had begun")
        return decide_stop(self._history())

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        """Write failure.json, the event and, at the end, the verdict file."""
        if failure is not None:
            restarted = verdict.action == "restart" or verdict.exit_code == ExitCode.ATTEMPT_LOST
            self._write_failure(replace(failure, restarted=restarted, attempt=self._attempt))
        if verdict.action == "restart":
            self._note_restart(verdict.why, failure)
            return
        if verdict.exit_code == ExitCode.PREEMPTED and self._stopped_before_it_began:
            pass  # no attempt has ended: the last event still tells how the one before did
        elif verdict.exit_code == ExitCode.PREEMPTED:
            append_event(self._run, "preempted", self._attempt, step=newest_step(self._run))
        elif verdict.exit_code != ExitCode.ATTEMPT_LOST:
            append_event(self._run, "finished", self._attempt, exit_code=verdict.exit_code, why=verdict.why)
        if verdict.exit_code not in (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST):
            self._run.secrets.unlink(missing_ok=True)
        write_verdict(self._settings, code_for_scheduler(self._settings.launcher, verdict.exit_code, failure))

    @property
    def _stopped_before_it_began(self) -> bool:
        """Pods come and go one by one, and each that goes stops those that wait: no attempt is used up."""
        return self._settings.in_pod and not self._began

    def _write_failure(self, failure: Failure) -> None:
        # Who reads it in a pod's record has the run by its name, and another directory.
        where = self._run.path.name if self._settings.in_pod else self._run.path
        hints = [f"dist-train resume {where}"]
        if failure.rank is not None:
            hints.insert(0, f"dist-train logs {where} --rank {failure.rank}")
        write_failure(self._run, replace(failure, next=tuple(hints)))

    def _note_restart(self, why: str, failure: Failure | None) -> None:
        append_event(
            self._run,
            "restarted",
            self._attempt,
            why=why,
            committed=newest_step(self._run),
            rank=failure.rank if failure else None,
        )

    def _history(self) -> History:
        """Since the last submission: a resume begins a new count."""
        restarts, committed = 0, list[int | None]()
        for event in read_events(self._run):
            match event["kind"]:
                case "submitted":
                    restarts, committed = 0, []
                case "restarted":
                    restarts += 1
                    committed.append(event.get("committed"))
                case "preempted":
                    committed.append(event.get("step"))
        keeps = self._settings.kind == "config" or bool(committed_steps(self._run))
        return History(restarts, (*committed, newest_step(self._run)), keeps)

    def _account_for_lost_attempt(self) -> None:
        """The last attempt has no end: its agent 0 was lost, and this start is a restart of it."""
        last = None
        for event in read_events(self._run):
            last = event
        if last is None or last["kind"] in ("submitted", "preempted", "finished", "restarted"):
            return
        lost = Failure(source="dist-train", cls="node_lost", exit_code=ExitCode.UNAVAILABLE)
        decision = self.decide(lost, stopping=False)
        if decision.exit_code == ExitCode.NO_PROGRESS:
            raise NoProgressError(decision.why)
        if decision.exit_code != ExitCode.ATTEMPT_LOST:
            raise UnavailableError(f"a node or its agent was lost again: {decision.why}")
        self._attempt = int(last.get("attempt") or 0)
        self._note_restart("a node or its agent was lost", None)

    def _refuse_changed_code(self, fingerprint: dict[str, str]) -> None:
        before = self._last_fingerprint()
        if before is None or self._settings.accept_code_change:
            return
        changed = [key for key, value in fingerprint.items() if before.get(key, value) != value]
        if changed:
            told = ", ".join(f"{key}: {before[key]} before, {fingerprint[key]} now" for key in changed)
            raise ConfigError(
                f"this attempt differs from the last one: {told}",
                cause="a run that goes on with other code or another config is not the same run",
                mend=f"dist-train resume {self._run.path} --accept-code-change",
            )

    def _last_fingerprint(self) -> dict[str, str] | None:
        """Of the newest attempt that was let through: a refused one leaves none."""
        for attempt in range(self._attempt - 1, -1, -1):
            found = read_json(self._run.attempts / str(attempt) / "fingerprint.json")
            if found is not None:
                return found
        return None

    def _poll(self) -> None:
        beat_at = time.monotonic() + bounds.HEARTBEAT_S
        while not self._stop.wait(_POLL_S):
            self._note_checkpoints()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + bounds.HEARTBEAT_S
                self._lease.beat(self._attempt)
        self._note_checkpoints()

    def _note_checkpoints(self) -> None:
        steps = committed_steps(self._run)
        for step in steps:
            if step not in self._seen:
                append_event(self._run, "checkpoint_committed", self._attempt, step=step)
        # A step that was quarantined may be committed again.
        self._seen = set(steps)
