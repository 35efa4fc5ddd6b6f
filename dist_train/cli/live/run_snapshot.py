"""A snapshot of a run from its records, read once a second by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dist_train.cli.run.run_summary import summarize
from dist_train.jobs.spec import JobSpec
from dist_train.rundir import RunDir
from dist_train.rundir.eta import Eta
from dist_train.rundir.events import RecentEvents
from dist_train.rundir.metric_text import ProgressLines
from dist_train.rundir.metrics_file import TAIL_BYTES, last_metrics
from dist_train.rundir.records import FileTail, parse_line
from dist_train.rundir.stop_file import NO_STEP, StopFile

_EVERY_S = 1.0
_MOST_ERRORS = 5


@dataclass(frozen=True)
class RunSnapshot:
    """The state of a run at one moment.

    Args:
        at_s: when it was taken, by the monotonic clock.
        phase: starting, running, saving and stopping, or why that is not known.
        train: the newest training record of this attempt or an earlier one; None before the first.
        evaluation: the newest evaluation.
        step: optimizer steps done; it may be ahead of the newest record.
        eta_s: seconds to the end, at `at_s`.
        checkpoint_age_s: of the newest checkpoint, at `at_s`.
    """

    name: str
    ranks: int
    began_s: float
    at_s: float
    phase: str = "starting"
    attempt: int | None = None
    restarts: int = 0
    train: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    step: int | None = None
    eta_s: float | None = None
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None


class RunWatcher:
    """Takes a snapshot once a second in a thread: a slow file system does not block the panel."""

    def __init__(self, run: RunDir, spec: JobSpec) -> None:
        now = time.monotonic()
        self._run = run
        self._spec = spec
        self._events = RecentEvents(run)
        self._newest: tuple[Any, float] = (None, now)
        self._over = threading.Event()
        self.snapshot = RunSnapshot(run.path.name, spec.world_size, now, now)

    def __enter__(self) -> Self:
        threading.Thread(target=self._loop, name="watcher", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _loop(self) -> None:
        errors = 0
        while not self._over.is_set():
            try:
                self.snapshot, errors = self.take(), 0
            # Often a record that is being written: the next snapshot has it. A frozen panel gives the reason.
            except Exception as error:
                errors += 1
                if errors >= _MOST_ERRORS:
                    self.snapshot = replace(self.snapshot, phase=f"its records cannot be read: {error!r}")
            self._over.wait(_EVERY_S)

    def take(self) -> RunSnapshot:
        """Read the records now."""
        now = time.monotonic()
        events = self._events.read()
        facts = summarize(self._run, events)
        began = _began(events)
        # Until this launch's attempt begins, the stop files are those of the previous launch.
        stop_files = [] if began is None else self._stop_files()
        train = facts.train
        seen_s = self._seen_at(train, now)
        phase = self._phase(train, began, stopping=any(stop for stop, _ in stop_files))
        return replace(
            self.snapshot,
            at_s=now,
            phase=phase,
            attempt=facts.attempt,
            restarts=facts.restarts,
            train=train,
            evaluation=facts.evaluation,
            step=_step(train, [step for _, step in stop_files]),
            # While ranks start, the newest record is of an earlier attempt.
            eta_s=None if phase == "starting" else self._eta_s(train, now - seen_s),
            checkpoint_step=facts.checkpoint_step,
            checkpoint_age_s=facts.checkpoint_age_s,
        )

    def _phase(self, train: Mapping[str, Any] | None, began: str | None, stopping: bool) -> str:
        if began is None:
            return "starting"
        if stopping:
            return "saving and stopping"
        if self._spec.target.kind != "config" and train is None:
            return "running"  # a script need not log anything
        # Times of one host: agent 0 and rank 0 are on the same node.
        return "running" if train is not None and train.get("time", "") >= began else "starting"

    def _stop_files(self) -> list[tuple[int, int]]:
        """(stop flag, furthest step) of each node whose stop file this machine sees."""
        found = []
        for node in range(self._spec.nodes):
            try:
                stop_file = StopFile.open(self._run.control / f"board-node-{node}")
            except (OSError, ValueError):
                continue
            try:
                steps = [stop_file.read(rank).step for rank in range(self._spec.procs_per_node)]
                found.append((stop_file.stop, max(steps, default=NO_STEP)))
            finally:
                stop_file.close()
        return found

    def _seen_at(self, train: Mapping[str, Any] | None, now: float) -> float:
        """When the newest record was first read, by this machine's monotonic clock."""
        stamp = None if train is None else train.get("time")
        if stamp != self._newest[0]:
            self._newest = (stamp, now)
        return self._newest[1]

    def _eta_s(self, train: Mapping[str, Any] | None, since_s: float) -> float | None:
        if train is None:
            return None
        left = train.get("eta_s")
        if left is None and isinstance(total := train.get("total_steps"), int):
            left = self._extrapolated(total)
        return None if left is None else max(0.0, left - since_s)

    def _extrapolated(self, total_steps: int) -> float | None:
        """For a user's script that logs `total_steps`: from the times of its records."""
        from datetime import datetime

        remaining = Eta()
        for record in last_metrics(self._run.metrics):
            if record.get("kind") == "train" and isinstance(record.get("step"), int):
                remaining.see(record["step"], datetime.fromisoformat(record["time"]).timestamp())
        return remaining.seconds(total_steps)


class RepeatedLines:
    """Finds the lines of the output that repeat a record of the run, which the panel shows."""

    def __init__(self, run: RunDir) -> None:
        self._records = FileTail(run.metrics, tail=TAIL_BYTES)
        self._own = ProgressLines()

    def has(self, line: str) -> bool:
        """Whether this line is one of them."""
        if not line.startswith("["):
            text = line
        else:  # `[rank 0 host] …` of --show-ranks all, `[rank 0] …` of logs
            text = line.partition("] ")[2] if line.startswith("[rank 0") else ""
        if not text.startswith(("epoch ", "step ")):
            return False
        try:
            self._own.add(filter(None, map(parse_line, self._records.read_new())))
        except OSError:
            pass  # the file system does not answer: compare with the records read so far
        return self._own.has(text)


def _began(events: list[dict[str, Any]]) -> str | None:
    """When the running attempt began; None while none runs."""
    marks = [event for event in events if event["kind"] in ("attempt_started", "restarted")]
    return str(marks[-1]["time"]) if marks and marks[-1]["kind"] == "attempt_started" else None


def _step(train: Mapping[str, Any] | None, in_stop_files: list[int]) -> int | None:
    known = [step for step in in_stop_files if step != NO_STEP]
    if train is not None and isinstance(train.get("step"), int):
        known.append(train["step"])
    return max(known, default=None)
