"""Loader workers end with the iteration, at exit, and when the process is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from warm_commands.forked_command import ForkedCommand, command_server

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.permutation import Permutation

pytestmark = pytest.mark.multiprocess
Start = Callable[..., tuple[ForkedCommand, list[int]]]


class Numbers:
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return index


class SlowNumbers(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.05)
        return index


class FailingNumbers(Numbers):
    def __getitem__(self, index: int) -> int:
        raise KeyError(f"sample {index} is broken")


def test_new_workers_end_with_the_epoch_with_a_break_and_with_an_error() -> None:
    one = ExactLoader(Numbers(), 8, workers=2, persistent_workers=False)
    assert [i for batch in one for i in batch.tolist()] == list(Permutation(400))
    assert multiprocessing.active_children() == []
    for _ in one:
        assert len(multiprocessing.active_children()) == 2
        break
    assert multiprocessing.active_children() == []
    with pytest.raises(KeyError, match="is broken") as caught:
        next(iter(ExactLoader(FailingNumbers(), 8, workers=2)))
    assert multiprocessing.active_children() == []  # although `caught` still holds the frames
    assert caught.traceback


def test_spawned_workers_read_the_same() -> None:
    one = ExactLoader(Numbers(), 200, workers=1, multiprocessing_context="spawn")
    assert next(iter(one)).tolist() == [Permutation(400)[i] for i in range(200)]


def started(number: int) -> None:
    os.environ["STARTED_WORKER"] = str(number)


class WorkerNumber(Numbers):
    def __getitem__(self, index: int) -> int:
        return int(os.environ["STARTED_WORKER"])


def test_worker_init_fn_is_called() -> None:
    one = ExactLoader(WorkerNumber(), 8, workers=2, worker_init_fn=started)
    assert {i for batch in one for i in batch.tolist()} == {0, 1}


SCRIPT = """
import multiprocessing, os, signal, sys, time
# As our agent starts ranks: TERM is blocked, also in their children.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from dist_train.data.exact_loader import ExactLoader

class Endless:
    reads = 0
    def __len__(self): return 400
    def __getitem__(self, index):
        self.reads += 1
        if self.reads > 2: time.sleep(SLEEP)  # a worker's first batch comes at once
        return index

one = ExactLoader(Endless(), 2, workers=2, shuffle=True, seed=1)
batches = iter(one)
next(batches)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
END
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the script, which writes to `said` and `errors`; give its process and its workers' ids.

    It is a fork of a process that has imported torch. All are ended after the test.
    """
    started: list[tuple[ForkedCommand, list[int]]] = []

    def start_script(end: str, sleep_s: float = 0.01) -> tuple[ForkedCommand, list[int]]:
        script, said = tmp_path / "script.py", tmp_path / "said"
        script.write_text(SCRIPT.replace("SLEEP", str(sleep_s)).replace("END", end))
        with ExitStack() as stack:
            out, errors = (stack.enter_context(path.open("wb")) for path in (said, tmp_path / "errors"))
            process = command_server().start_script(
                [str(script)], str(tmp_path), os.environ, out.fileno(), errors.fileno()
            )
        started.append((process, []))
        deadline = time.monotonic() + 60
        while "\n" not in said.read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the script's line comes when its workers run; the deadline bounds it
        started[-1][1].extend(int(pid) for pid in said.read_text().split())
        return started[-1]

    yield start_script
    for process, workers in started:
        process.kill()
        for pid in alive(workers, 0):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


def alive(pids: list[int], within_s: float) -> list[int]:
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("raise ValueError('user')", 1)])
def test_exit_in_the_middle_of_an_epoch_does_not_wait_for_workers_that_ignore_term(
    start: Start, tmp_path: Path, end: str, code: int
) -> None:
    process, workers = start(end)
    process.wait(20)
    errors = (tmp_path / "errors").read_text()
    assert len(workers) == 2
    assert process.returncode == code, errors
    assert "DataLoader worker" not in errors
    assert alive(workers, 1) == []


def test_workers_do_not_survive_a_killed_parent_even_in_the_middle_of_a_read(start: Start) -> None:
    process, workers = start("time.sleep(60)", sleep_s=60)
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert alive(workers, 2) == []
