"""Ranks on their way out, as real processes: who is left alone, who is ended, and whose exit code counts."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.failures.classify_failure import RankExit, classify
from dist_train.agent.workers.exit_watchdog import ExitBounds, ExitWatchdog, activity_of
from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank, start_rank
from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.rundir.stop_file import ExitMark, StopFile

BOUNDS = ExitBounds(blocked_s=2.0, interpreter_end_s=0.8, failed_interpreter_end_s=0.4, idle_exit_s=1.6)
# Sleeps in C with the interpreter's lock held, as gloo's destructor does.
BLOCKS = "import ctypes, os; ctypes.PyDLL(None).sleep(60)"
AT_THE_END = """
import ctypes, os
class Last:
    def __init__(self, c=ctypes.PyDLL(None)):
        self.c = c
    def __del__(self):
        self.c.{what}
rows = open("rows.txt", "w")
rows.write("100 rows")
last = Last()
"""


class Scene:
    """Ranks of one node with short bounds."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self.folder = folder
        stop_file = StopFile.create(folder / "board", len(scripts))
        self.said = io.StringIO()

        def exit_mark(rank: Rank) -> ExitMark:
            return stop_file.read_exit(rank.local_rank)

        self.ranks = [self._start(number, text) for number, text in enumerate(scripts)]
        output = RankOutput("host", out=io.StringIO(), err=self.said)
        self.workers = Workers(self.ranks, output, lambda rank: None, exit_mark)
        self.watchdog = ExitWatchdog(exit_mark, BOUNDS)

    def _start(self, number: int, text: str) -> Rank:
        script = self.folder / f"rank{number}.py"
        script.write_text(text)
        environ = {
            **os.environ,
            env.STOP_FILE: str(self.folder / "board"),
            "LOCAL_RANK": str(number),
            "RANK": str(number),
        }
        log = RankLog(self.folder, number)
        return start_rank(number, number, ["script", str(script)], environ, self.folder / "error", log)

    def run(self) -> list[int | None]:
        deadline = time.monotonic() + 20
        try:
            while not self.workers.all_ended:
                assert time.monotonic() < deadline, "a rank was left for ever"
                self.watchdog.check(self.workers)
                time.sleep(0.02)
        finally:
            self.workers.kill(dump_stacks=False)
        return [rank.returncode for rank in self.ranks]


MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeScene:
    monkeypatch.chdir(tmp_path)
    return lambda *scripts: Scene(tmp_path, *scripts)


@pytest.mark.parametrize(
    "alone",
    [
        "import subprocess; subprocess.run(['sleep', '3.5'], check=True)",
        "import select, socket; select.select([socket.socketpair()[0]], [], [], 3.5)",
    ],
    ids=["child", "upload"],
)
def test_a_rank_that_works_alone_after_the_others_is_left_alone(scene: MakeScene, alone: str) -> None:
    assert scene("pass", alone).run() == [0, 0]


def test_a_blocked_interpreter_is_ended_once_another_rank_has_finished(scene: MakeScene) -> None:
    blocked = scene("pass", BLOCKS)
    assert blocked.run() == [0, -9]
    why = blocked.ranks[1].limit_exceeded or ""
    assert why.startswith("its Python was blocked for 2 s after another rank had finished")


@pytest.mark.parametrize("what", ["sleep(60)", "abort()"], ids=["hangs", "crashes"])
@pytest.mark.parametrize("code", [0, 3])
def test_an_interpreters_end_that_fails_keeps_the_scripts_code_and_its_files(
    scene: MakeScene, tmp_path: Path, what: str, code: int
) -> None:
    ended = scene(AT_THE_END.format(what=what) + f"raise SystemExit({code})")
    assert ended.run() == [code]
    assert (tmp_path / "rows.txt").read_text() == "100 rows"
    assert f"its script had ended with {code}, which counts" in ended.said.getvalue()


def test_a_deadline_of_the_exit_functions_does_not_replace_the_scripts_code(scene: MakeScene) -> None:
    late = "import atexit, faulthandler\n"
    late += "atexit.register(faulthandler.dump_traceback_later, 0.3, exit=True)\n"
    assert scene(late + AT_THE_END.format(what="sleep(60)")).run() == [0]


def test_a_crash_before_the_interpreters_end_is_a_crash(scene: MakeScene) -> None:
    assert scene("import atexit, os; atexit.register(os.abort)").run() == [-6]


def test_a_thread_that_never_ends_after_the_script_is_cut_short_and_not_a_success(scene: MakeScene) -> None:
    ended = scene("import threading, time; threading.Thread(target=lambda: time.sleep(60)).start()")
    assert ended.run() == [1]
    why = ended.ranks[0].cut_short
    assert why is not None
    assert why.startswith("its script had ended with 0, but its threads or exit functions did not end")
    assert classify(RankExit(1, cut_short=why)) == ("exit", why)


def test_an_exit_function_at_work_is_left_alone(scene: MakeScene) -> None:
    busy = "import atexit, subprocess\n"
    busy += "atexit.register(subprocess.run, ['sh', '-c', 'timeout 3 sh -c \"while :; do :; done\"'])"
    assert scene(busy).run() == [0]


def test_a_forked_child_does_not_mark_its_parents_end(scene: MakeScene) -> None:
    forks = "import os, time\nif os.fork() == 0: raise SystemExit(7)\n"
    forks += "os.wait(); time.sleep(1.0); raise SystemExit(4)"
    assert scene(forks).run() == [4]


def test_activity_of_a_process_and_of_one_that_has_gone() -> None:
    assert activity_of(os.getpid()).cpu_s > 0
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert activity_of(gone.pid).cpu_s == 0
