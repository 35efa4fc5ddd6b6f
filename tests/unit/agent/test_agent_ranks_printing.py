"""Ranks as real processes that print: what their logs keep, what is shown, and what it costs."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank, start_rank
from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.rundir.stop_file import ExitMark

WITHIN_S = 30.0


class Scene:
    """Ranks of one node, each with a script, and a terminal that keeps what is shown."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.ranks = [self._start(folder, number, text) for number, text in enumerate(scripts)]
        self.output = RankOutput("host", out=self.out, err=self.err)
        self.workers = Workers(self.ranks, self.output, lambda rank: None, lambda rank: ExitMark())

    @staticmethod
    def _start(folder: Path, number: int, text: str) -> Rank:
        script = folder / f"rank{number}.py"
        script.write_text(f"import os, sys, time\n{text}")
        log = RankLog(folder, number)
        environ = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number)}
        return start_rank(number, number, ["script", str(script)], environ, folder / f"e{number}", log)

    def wait(self, ready: Callable[[], bool], within_s: float = WITHIN_S) -> bool:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if ready():
                return True
            time.sleep(0.01)
        return ready()

    def log(self, number: int = 0) -> bytes:
        return self.ranks[number].log.path.read_bytes()

    def wait_for_end(self) -> None:
        assert self.wait(lambda: self.workers.all_ended)
        self.workers._thread.join(WITHIN_S)


def test_output_without_a_newline_costs_linear_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "for _ in range(32): os.write(1, b'x' * (1 << 20))")
    began = time.monotonic()
    scene.wait_for_end()
    assert time.monotonic() - began < 10.0
    assert len(scene.log()) == len(scene.out.getvalue()) == 32 << 20


def test_a_progress_bar_shows_while_it_grows(tmp_path: Path) -> None:
    bar = "for n in range(100): os.write(2, f'\\r {n}%|##'.encode()); time.sleep(0.02)\ntime.sleep(60)"
    scene = Scene(tmp_path, bar)
    try:
        assert scene.wait(lambda: "%|##" in scene.err.getvalue(), 10.0)
        assert all(line.startswith("[rank 0 host]  ") for line in scene.err.getvalue().splitlines())
        assert scene.wait(lambda: scene.log().endswith(b"\r 99%|##"), 10.0)
    finally:
        scene.workers.kill(dump_stacks=False)
    assert scene.log() == b"".join(f"\r {n}%|##".encode() for n in range(100))
    assert len(scene.err.getvalue().splitlines()) < 10
    assert scene.ranks[0].stderr_tail[-1] == " 99%|##"
    assert len(scene.ranks[0].stderr_tail) < 3


def test_a_prompt_without_a_newline_shows(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "os.write(1, b'loading...'); time.sleep(60)")
    try:
        assert scene.wait(lambda: scene.out.getvalue() == "loading...", 10.0)
        assert scene.wait(lambda: scene.log() == b"loading...", 10.0)
    finally:
        scene.workers.kill(dump_stacks=False)


def test_a_rank_that_is_killed_with_others_has_its_last_words_shown_before_its_stacks(tmp_path: Path) -> None:
    words = "os.write(1, b'whole\\nlast out'); os.write(2, b'last err'); open('ready', 'w'); time.sleep(60)"
    scene = Scene(tmp_path, words.replace("'ready'", repr(str(tmp_path / "ready"))))
    assert scene.wait((tmp_path / "ready").exists)
    scene.workers.kill(dump_stacks=True)
    scene.output.flush()
    assert scene.out.getvalue() == "whole\nlast out"
    assert scene.err.getvalue() == "[rank 0 host] last err\n", "the stacks are for the log"
    words_logged, stacks = scene.log().split(b"File ", 1)
    assert b"last out" in words_logged
    assert b"last err" in words_logged
    assert b"rank0.py" in stacks


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r", b""])
def test_logs_and_stdout_of_rank_0_keep_the_bytes(tmp_path: Path, ends: bytes) -> None:
    content = b"a\r\rb\x00\xff" + ends + b"\n\r  last" + ends
    scene = Scene(tmp_path, f"os.write(1, {content!r})")
    scene.wait_for_end()
    assert scene.log() == content
    assert scene.out.getvalue() == content.decode(errors="replace")


def test_a_log_is_written_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[float] = []
    real = os.write

    def counted(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("rank-0.log"):
            writes.append(time.monotonic())
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    scene = Scene(tmp_path, "for n in range(300): print(n); time.sleep(0.005)\nprint('end'); time.sleep(60)")
    try:
        assert scene.wait(lambda: "end\n" in scene.out.getvalue())
        shown_at = time.monotonic()
        assert scene.wait(lambda: scene.log().endswith(b"end\n"), 5.0)
        # With room for a busy machine; the loop alone bounds it to one second.
        assert time.monotonic() - shown_at < 3.0
        assert len(writes) <= 8
    finally:
        scene.workers.kill(dump_stacks=False)
