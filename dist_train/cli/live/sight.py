"""Where a run stands now, from its own records; read again and again by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dist_train.cli.facts import gather
from dist_train.jobs.spec import JobSpec
from dist_train.rundir import RunDir
from dist_train.rundir.board import NO_STEP, Board
from dist_train.rundir.events import RecentEvents
from dist_train.rundir.metrics import TAIL_BYTES, last_metrics
from dist_train.rundir.records import Appended, parse_line
from dist_train.rundir.remaining import Remaining
from dist_train.rundir.telling import OwnLines

_EVERY_S = 1.0
_MISSES = 5


@dataclass(frozen=True)
class Sight:
    """One look at a run.

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


class Watcher:
    """Looks at a run once a second, so that a slow file system keeps nobody waiting for the newest sight."""

    def __init__(self, run: RunDir, spec: JobSpec) -> None:
        now = time.monotonic()
        self._run = run
        self._spec = spec
        self._events = RecentEvents(run)
        self._newest: tuple[Any, float] = (None, now)
        self._over = threading.Event()
        self.sight = Sight(run.path.name, spec.world_size, now, now)

    def __enter__(self) -> Self:
        threading.Thread(target=self._loop, name="watcher", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _loop(self) -> None:
        misses = 0
        while not self._over.is_set():
            try:
                self.sight, misses = self.look(), 0
            # A record in the midst of its making: the next look sees it. A panel must not freeze unsaid.
            except Exception as error:
                misses += 1
                if misses >= _MISSES:
                    self.sight = replace(self.sight, phase=f"its records cannot be read: {error!r}")
            self._over.wait(_EVERY_S)

    def look(self) -> Sight:
        """Read the records now."""
        now = time.monotonic()
        events = self._events.look()
        facts = gather(self._run, events)
        began = _began(events)
        # Until this launch's attempt begins, the boards are those of the launch before.
        boards = [] if began is None else self._boards()
        train = facts.train
        seen_s = self._seen_at(train, now)
        phase = self._phase(train, began, stopping=any(stop for stop, _ in boards))
        return replace(
            self.sight,
            at_s=now,
            phase=phase,
            attempt=facts.attempt,
            restarts=facts.restarts,
            train=train,
            evaluation=facts.evaluation,
            step=_step(train, [step for _, step in boards]),
            # While ranks start, the newest record is an earlier attempt's.
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

    def _boards(self) -> list[tuple[int, int]]:
        """(stop flag, furthest step) of each node whose board can be seen from here."""
        found = []
        for node in range(self._spec.nodes):
            try:
                board = Board.open(self._run.control / f"board-node-{node}")
            except (OSError, ValueError):
                continue
            try:
                steps = [board.read(rank).step for rank in range(self._spec.procs_per_node)]
                found.append((board.stop, max(steps, default=NO_STEP)))
            finally:
                board.close()
        return found

    def _seen_at(self, train: Mapping[str, Any] | None, now: float) -> float:
        """When the newest record came, by this machine's clock."""
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
        """For a script of the user's own that logs `total_steps`: from the times of its records."""
        from datetime import datetime

        remaining = Remaining()
        for record in last_metrics(self._run.metrics):
            if record.get("kind") == "train" and isinstance(record.get("step"), int):
                remaining.see(record["step"], datetime.fromisoformat(record["time"]).timestamp())
        return remaining.seconds(total_steps)


class Repeats:
    """Tells the lines of the output that only repeat a record of the run, which the panel shows."""

    def __init__(self, run: RunDir) -> None:
        self._records = Appended(run.metrics, tail=TAIL_BYTES)
        self._own = OwnLines()

    def has(self, line: str) -> bool:
        """Whether this line is one of them."""
        if not line.startswith("["):
            text = line
        else:  # `[rank 0 host] …` of --show-ranks all, `[rank 0] …` of logs
            text = line.partition("] ")[2] if line.startswith("[rank 0") else ""
        if not text.startswith(("epoch ", "step ")):
            return False
        try:
            self._own.add(filter(None, map(parse_line, self._records.look())))
        except OSError:
            pass  # a file system that is away: what is known already may do
        return self._own.has(text)


def _began(events: list[dict[str, Any]]) -> str | None:
    """When the attempt began that is at work; None while none is."""
    marks = [event for event in events if event["kind"] in ("attempt_started", "restarted")]
    return str(marks[-1]["time"]) if marks and marks[-1]["kind"] == "attempt_started" else None


def _step(train: Mapping[str, Any] | None, on_boards: list[int]) -> int | None:
    known = [step for step in on_boards if step != NO_STEP]
    if train is not None and isinstance(train.get("step"), int):
        known.append(train["step"])
    return max(known, default=None)
