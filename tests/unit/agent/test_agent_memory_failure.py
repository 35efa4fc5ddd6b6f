"""A failure with what the kernel's counts of kills for memory say of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_train.agent.failures.memory_failure import with_memory_kill
from dist_train.agent.failures.root_cause import choose_root_cause, is_crash
from dist_train.agent.workers.memory_watch import MemoryWatch
from dist_train.jobs.memory_kills import GroupMemory, MemoryKill, MemoryReading
from dist_train.rundir.failure import Failure

GIB = 1 << 30
LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
KILL = MemoryKill(1, GIB, GIB, LIMIT_FILE, True)
KILLED = Failure(
    "rank",
    "signal",
    rank=1,
    exit_code=137,
    signal=9,
    message="killed by signal 9 (SIGKILL) (often the kernel's out-of-memory killer: see `dmesg`)",
)
OUT = "out of memory at the limit of 1.0 GiB of its control group (/sys/fs/cgroup/memory.max, peak 1.0 GiB)"


def test_a_killed_rank() -> None:
    found = with_memory_kill(KILLED, KILL, "--mem", True)
    assert (found.cls, found.message) == ("out_of_memory", f"killed by signal 9 (SIGKILL): {OUT}")
    assert (found.memory_limit, found.memory_peak) == (GIB, GIB)
    assert str(found.hint).startswith("more with --mem 2G; or less: fewer loader workers")
    assert is_crash(found)
    assert Failure.from_record(found.to_record()) == found


def test_a_launcher_without_an_option_names_the_file() -> None:
    found = with_memory_kill(KILLED, KILL, "", True)
    assert str(found.hint).startswith(f"more memory (raise it: {LIMIT_FILE}), fewer loader workers")


@pytest.mark.parametrize(
    ("exit_code", "exception", "message"),
    [
        (1, "RuntimeError", "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. "),
        (1, "RuntimeError", "RuntimeError: DataLoader worker (pid(s) 17) exited unexpectedly"),
        (137, None, "exited with code 137"),
    ],
)
def test_a_killed_child_of_a_rank_is_out_of_memory_and_not_restarted(
    exit_code: int, exception: str | None, message: str
) -> None:
    error = Failure(
        "rank",
        "exit" if exception is None else "exception",
        rank=0,
        exit_code=exit_code,
        exception=exception,
        message=message,
    )
    found = with_memory_kill(error, KILL, "--mem", True)
    assert (found.cls, found.message) == ("out_of_memory", f"{message}: {OUT}")
    assert not is_crash(found)
    assert with_memory_kill(error, None, "--mem", True) == error


def test_another_error_keeps_its_class_and_its_hint() -> None:
    error = Failure(
        "rank", "exception", rank=0, exception="ValueError", message="ValueError: no", hint="do x"
    )
    found = with_memory_kill(error, KILL, "", True)
    assert (found.cls, found.message) == ("exception", "ValueError: no")
    assert found.hint == f"do x; shortly before, the kernel killed a process here: {OUT}"
    secondary = replace(error, cls="victim")
    assert with_memory_kill(secondary, KILL, "", True) == secondary


def test_a_kill_somewhere_on_the_machine_is_said_as_uncertain() -> None:
    found = with_memory_kill(KILLED, MemoryKill(1, None, None, None, False), "--mem", False)
    assert (found.cls, found.hint) == ("signal", None)
    assert found.message.startswith("killed by signal 9 (SIGKILL): perhaps out of memory: the kernel of this")


def test_a_kill_that_was_not_for_memory_is_said_too() -> None:
    found = with_memory_kill(KILLED, None, "--mem", True)
    assert (found.cls, "dmesg" in found.message) == ("signal", False)
    assert found.message.endswith("(not by the kernel for memory: this control group counts no such kill)")
    assert with_memory_kill(KILLED, None, "--mem", False) == KILLED


def test_it_is_the_root_cause() -> None:
    error = Failure("rank", "exception", rank=0, message="ValueError: no")
    assert choose_root_cause([error, with_memory_kill(KILLED, KILL, "", True)]).rank == 1


class Kernel:
    """Counts of one control group, and a clock."""

    def __init__(self) -> None:
        self.kills, self.now = 0, 0.0

    def read(self) -> MemoryReading:
        return MemoryReading((GroupMemory(self.kills, self.kills, GIB, None, LIMIT_FILE),), 0)

    def watch(self) -> MemoryWatch:
        return MemoryWatch(self.read, lambda: self.now)


def test_a_kill_of_the_last_half_minute_counts_and_an_older_one_does_not() -> None:
    kernel = Kernel()
    watch = kernel.watch()
    kernel.kills = 1
    for _ in range(100):
        kernel.now += 0.25
        watch.tick()
    assert watch.kill_before_end_of(0) is not None
    for _ in range(100):
        kernel.now += 0.5
        watch.tick()
    assert watch.kill_before_end_of(1) is None
    assert watch.kill_before_end_of(0) is not None, "the first call decides: the report is made twice"
