"""What a rank leaves behind at its end: its processes are ended, leaked shared memory is removed."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.agent.workers.process_group import program_left
from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import start_rank
from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.jobs.orphans import is_resource_tracker, let_tracker_end, wait_for_trackers
from dist_train.rundir.stop_file import ExitMark

LEAKS = """
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, name={name!r}, size=100)
"""
ENDS = {
    "well": "",
    "by an exception": "raise ValueError('x')",
    "by SIGKILL": "import os; os.kill(os.getpid(), 9)",
}
LEAVES = "import subprocess; subprocess.Popen(['sleep', '61'])\n"


def wait(ready: Callable[[], bool], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.01)
    return ready()


def start(folder: Path, *scripts: str) -> tuple[Workers, io.StringIO]:
    err = io.StringIO()
    output = RankOutput("host", out=io.StringIO(), err=err)
    ranks = []
    for number, text in enumerate(scripts):
        script = folder / f"rank{number}.py"
        script.write_text(text)
        environ = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number)}
        error_file = folder / f"e{number}"
        ranks.append(
            start_rank(number, number, ["script", str(script)], environ, error_file, RankLog(folder, number))
        )
    return Workers(ranks, output, lambda rank: None, lambda rank: ExitMark()), err


def run(folder: Path, *scripts: str) -> str:
    """Run them to their end; returns what the agent shows on stderr."""
    workers, err = start(folder, *scripts)
    assert wait(lambda: workers.all_ended)
    workers._thread.join(30)
    return err.getvalue()


@pytest.mark.parametrize("end", ENDS)
def test_leaked_shared_memory_is_removed_after_the_ranks_end(tmp_path: Path, end: str) -> None:
    name = f"dist-train-{uuid.uuid4().hex}"
    run(tmp_path, LEAKS.format(name=name) + ENDS[end])
    wait_for_trackers()
    assert not Path("/dev/shm", name).exists()


def test_leaked_shared_memory_is_removed_where_a_child_holds_it_and_the_rank_is_killed(
    tmp_path: Path,
) -> None:
    name = f"dist-train-{uuid.uuid4().hex}"
    holds = f"""
import multiprocessing, time
multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)).start()
open({str(tmp_path / "holds")!r}, "w")
"""
    workers, _ = start(tmp_path, LEAKS.format(name=name) + holds)
    assert wait((tmp_path / "holds").exists)
    workers.kill(dump_stacks=False)
    wait_for_trackers()
    assert not Path("/dev/shm", name).exists()


def test_a_resource_tracker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # held open: it waits for this process
    os.set_inheritable(reading, True)
    words = ["python", "-c", f"from multiprocessing.resource_tracker import main;main({reading})"]
    pid = os.posix_spawn(sys.executable, words, os.environ)
    try:
        assert wait(lambda: is_resource_tracker(pid))
        let_tracker_end(pid, patience_s=0.2)
        wait_for_trackers()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    finally:
        os.close(reading)
        os.close(writing)


def test_a_program_that_is_left_running_is_ended_and_said_once(tmp_path: Path) -> None:
    said = run(tmp_path, LEAVES, LEAVES)
    assert said.count("has left a process running, ended with it: sleep 61") == 1, said
    assert "(wait for it in the script)" in said


@pytest.mark.parametrize("end", ["raise ValueError('x')", "import os; os.kill(os.getpid(), 9)"])
def test_nothing_is_said_of_what_a_failed_rank_leaves(tmp_path: Path, end: str) -> None:
    assert "has left" not in run(tmp_path, LEAVES + end)


def test_nothing_is_said_of_what_a_killed_rank_leaves(tmp_path: Path) -> None:
    workers, err = start(
        tmp_path, f"{LEAVES}open({str(tmp_path / 'left')!r}, 'w'); import time; time.sleep(60)"
    )
    assert wait((tmp_path / "left").exists)
    workers.kill(dump_stacks=False)
    assert "has left" not in err.getvalue()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_nothing_is_said_of_multiprocessings_own_processes(tmp_path: Path, method: str) -> None:
    script = f"""
import multiprocessing, os, time
if __name__ == "__main__":
    multiprocessing.get_context({method!r}).Process(target=time.sleep, args=(60,)).start()
    time.sleep(0.3)
    os._exit(0)
"""
    assert "has left" not in run(tmp_path, script)


def test_a_long_command_is_cut(tmp_path: Path) -> None:
    pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "62", *["0"] * 200)
    try:
        assert wait(lambda: (program_left(pid) or "").startswith("sleep 62 0"))
        assert len(program_left(pid) or "") <= 100
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
