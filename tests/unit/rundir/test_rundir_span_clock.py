"""The clock of a rank: nested parts, other threads, forks, commits, and a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest

from dist_train.rundir.times import clock_file
from dist_train.rundir.times.clock_file import create_clock_file, read_clock_file
from dist_train.rundir.times.span_clock import (
    COMPUTE,
    DATA_WAIT,
    EVALUATION,
    IMPORT,
    SAVE_STALL,
    SCRIPT,
    SpanClock,
    counted_as,
    span_clock,
)


class Ticks:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "time-rank-0"


@pytest.fixture
def clock(path: Path, ticks: Ticks) -> SpanClock:
    return SpanClock(create_clock_file(path), threading.get_ident(), SCRIPT, ticks)


def seconds(path: Path) -> dict[str, float]:
    found = read_clock_file(path)
    assert found is not None
    return {part: counted for part, counted in found.seconds.items() if counted}


def test_each_span_counts_for_the_part_that_was_set(clock: SpanClock, ticks: Ticks, path: Path) -> None:
    for part, until in ((DATA_WAIT, 101.0), (COMPUTE, 103.0), (DATA_WAIT, 108.0), (COMPUTE, 109.0)):
        ticks.now = until
        clock.switch(part)
    assert seconds(path) == {"script": 1.0, "data_wait": 3.0, "compute": 5.0}
    found = read_clock_file(path)
    assert found is not None
    assert found.part == "compute"
    assert found.since - found.began == pytest.approx(9.0)


def test_a_whole_part_is_not_divided_by_what_is_called_in_it(
    clock: SpanClock, ticks: Ticks, path: Path
) -> None:
    clock.switch(COMPUTE)
    with clock.whole(EVALUATION):
        clock.switch(DATA_WAIT)
        ticks.now = 103.0
        with clock.whole(SAVE_STALL):
            ticks.now = 104.0
        clock.end_wait(DATA_WAIT)
        ticks.now = 106.0
    ticks.now = 107.0
    clock.switch(COMPUTE)
    assert seconds(path) == {"evaluation": 6.0, "compute": 1.0}


def test_what_a_whole_part_raises_ends_it(clock: SpanClock, ticks: Ticks, path: Path) -> None:
    clock.switch(COMPUTE)

    def fails() -> None:
        with clock.whole(SAVE_STALL):
            ticks.now = 102.0
            raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        fails()
    assert clock.part == COMPUTE
    assert seconds(path) == {"save_stall": 2.0}


def test_other_threads_and_forked_children_count_nothing(clock: SpanClock, ticks: Ticks, path: Path) -> None:
    def other() -> None:
        ticks.now = 105.0
        clock.switch(DATA_WAIT)
        with clock.whole(SAVE_STALL):
            clock.committed(3)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert clock.part == SCRIPT
    clock.leave()
    clock.switch(DATA_WAIT)
    clock.know(DATA_WAIT)
    found = read_clock_file(path)
    assert found is not None
    assert not found.known
    assert not found.commits
    assert seconds(path) == {}


def test_another_thread_notes_a_commit_with_what_was_counted_when_the_state_was_copied(
    clock: SpanClock, ticks: Ticks, path: Path
) -> None:
    clock.switch(COMPUTE)
    ticks.now += 2.0
    with clock.whole(SAVE_STALL):
        ticks.now += 0.5
        sums = clock.sums()
    ticks.now += 4.0
    clock.switch(DATA_WAIT)
    thread = threading.Thread(target=clock.committed, args=(7, sums))
    thread.start()
    thread.join()
    found = read_clock_file(path)
    assert found is not None
    ((step, counted),) = found.commits
    assert step == 7
    assert (counted["compute"], counted["save_stall"], counted["data_wait"]) == (2.0, 0.5, 0.0)
    assert seconds(path)["compute"] == 6.0


def test_a_commit_remembers_what_was_counted_until_then(clock: SpanClock, ticks: Ticks, path: Path) -> None:
    clock.switch(COMPUTE)
    for step in range(1, clock_file.KEPT_COMMITS + 3):
        ticks.now += 2.0
        with clock.whole(SAVE_STALL):
            ticks.now += 1.0
            clock.committed(step)
    found = read_clock_file(path)
    assert found is not None
    assert [step for step, _ in found.commits] == list(range(3, clock_file.KEPT_COMMITS + 3))
    assert found.commits[0][1]["compute"] == 6.0
    assert found.commits[0][1]["save_stall"] == 3.0  # the save's own time is before its commit


def test_the_first_restore_counts(clock: SpanClock, path: Path) -> None:
    found = read_clock_file(path)
    assert found is not None
    assert found.resumed is None
    clock.restored(None)
    clock.restored(7)  # a step back within the attempt
    found = read_clock_file(path)
    assert found is not None
    assert found.resumed == clock_file.FROM_THE_BEGINNING


def test_a_kill_loses_nothing(path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from dist_train.rundir.times import span_clock
clock = span_clock.start_clock(Path(sys.argv[1]))
clock.switch(span_clock.DATA_WAIT)
time.sleep(0.3)
clock.switch(span_clock.COMPUTE)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    found = read_clock_file(path)
    assert found is not None
    assert found.part == "compute"
    assert found.seconds["data_wait"] >= 0.3


def test_a_fork_of_the_process_does_not_count(path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from dist_train.rundir.times import span_clock
clock = span_clock.start_clock(Path(sys.argv[1]))
if not os.fork():
    clock.switch(span_clock.COMPUTE)
    os._exit(0)
os.wait()
"""
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=True)
    found = read_clock_file(path)
    assert found is not None
    assert found.part == "script"


def test_without_a_clock_nothing_is_counted() -> None:
    clock = span_clock()
    clock.switch(COMPUTE)
    with clock.whole(IMPORT):
        clock.committed(1)

    @counted_as(SAVE_STALL)
    def twice(number: int) -> int:
        return 2 * number

    assert not clock.counts
    assert twice(2) == 4


@pytest.mark.parametrize("content", [b"", b"\0" * 64, array("d", [99.0] * 200).tobytes()])
def test_a_file_of_something_else_is_no_reading(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_clock_file(path) is None
