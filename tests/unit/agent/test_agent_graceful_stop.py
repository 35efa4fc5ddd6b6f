"""A stop at the agent: which ranks get SIGTERM from it, and which have it from the scheduler."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dist_train.agent.workers import graceful_stop
from dist_train.agent.workers.graceful_stop import GracefulStop
from dist_train.rundir.stop_file import Slot, StopFile


@dataclass
class Sent:
    """A rank that is at work since a minute, and what it was sent."""

    started_at: float = field(default_factory=lambda: time.monotonic() - 60)
    local_rank: int = 0
    returncode: int | None = None
    limit_exceeded: str | None = None
    interrupted: bool = False
    scheduler_sigterm: bool = False
    sent: list[int] = field(default_factory=list)

    def send(self, number: int) -> None:
        self.sent.append(number)


@dataclass
class Working:
    ranks: list[Sent]


@pytest.fixture
def stop_file(tmp_path: Path) -> StopFile:
    return StopFile.create(tmp_path / "stop", 1)


def stopping(
    stop_file: StopFile, rank: Any, monkeypatch: pytest.MonkeyPatch, *, sigterm: bool, everywhere: bool
) -> GracefulStop:
    """A stop that was asked for a while ago."""
    stop = GracefulStop(grace_s=1000, step_signals=everywhere)
    stop.watch(stop_file, Working([rank]))  # type: ignore[arg-type]
    if sigterm:
        stop.sigterm_came()
    stop.ask()
    now = time.monotonic()
    monkeypatch.setattr(graceful_stop.time, "monotonic", lambda: now + 10)
    return stop


@pytest.mark.parametrize(
    ("handled", "passed_over", "sigterm", "everywhere", "sent"),
    [
        (True, False, True, True, []),  # its handler works already: not a second time
        (True, True, True, True, [signal.SIGTERM]),  # a handler that was installed later
        (False, True, True, True, [signal.SIGTERM]),  # no handler: interrupted as by Ctrl-C
        (True, False, False, True, [signal.SIGTERM]),  # the time limit's signal, or another node's stop
        (True, False, True, False, [signal.SIGTERM]),  # SIGTERM to the agent alone
    ],
)
def test_the_agent_calls_a_handler_that_the_scheduler_has_not_called(
    stop_file: StopFile,
    monkeypatch: pytest.MonkeyPatch,
    handled: bool,
    passed_over: bool,
    sigterm: bool,
    everywhere: bool,
    sent: list[int],
) -> None:
    stop_file.write_sigterm_handled(0, handled)
    if passed_over:
        stop_file.write_sigterm_passed_over(0)
    rank = Sent()
    stop = stopping(stop_file, rank, monkeypatch, sigterm=sigterm, everywhere=everywhere)
    stop.tick()
    stop.tick()
    assert (rank.sent, rank.interrupted) == (sent, True)
    assert stop_file.interrupts == bool(sent)


@pytest.mark.parametrize(
    ("handled", "reads_the_flag", "sigterm", "interrupted"),
    [
        (True, False, True, True),
        (False, False, True, False),  # it failed by itself
        (True, True, True, False),  # it has saved, or failed in it
        (True, False, False, False),
    ],
)
def test_a_rank_that_its_own_handler_ends_at_a_schedulers_sigterm_is_stopped_and_not_done(
    stop_file: StopFile,
    monkeypatch: pytest.MonkeyPatch,
    handled: bool,
    reads_the_flag: bool,
    sigterm: bool,
    interrupted: bool,
) -> None:
    stop_file.write_sigterm_handled(0, handled)
    if reads_the_flag:
        stop_file.write(0, Slot(4711, 5, 5))
    rank = Sent(returncode=0)
    stop = stopping(stop_file, rank, monkeypatch, sigterm=sigterm, everywhere=True)
    stop.note_end(rank)  # type: ignore[arg-type]
    assert (rank.interrupted, rank.scheduler_sigterm) == (interrupted, sigterm)


def test_a_rank_that_starts_after_the_schedulers_sigterm_has_not_got_it(
    stop_file: StopFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_file.write_sigterm_handled(0, True)
    rank = Sent(started_at=time.monotonic() + 1)
    stop = stopping(stop_file, rank, monkeypatch, sigterm=True, everywhere=True)
    stop.tick()
    assert rank.sent == [signal.SIGTERM]
