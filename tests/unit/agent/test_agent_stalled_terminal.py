"""A terminal whose reader has stopped (Ctrl-S, `less`): the ranks are watched and logged all the same."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from pathlib import Path
from typing import TextIO

import pytest

from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank, start_rank
from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.rundir.stop_file import ExitMark

LINES = 60_000
PRINTS = f"""
import os
for n in range({LINES}):
    os.write(1, b"%099d" % n + bytes([10]))
"""
DIES = "import os, time; time.sleep(2); os.kill(os.getpid(), 9)"


class StoppedReader:
    """A pipe that nobody reads until `read_all`."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self.stream: TextIO = os.fdopen(write, "w")
        self._taken = bytearray()

    def read_all(self) -> threading.Thread:
        def loop() -> None:
            while chunk := os.read(self._read, 1 << 16):
                self._taken.extend(chunk)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    @property
    def text(self) -> str:
        return self._taken.decode()


def start(folder: Path, number: int, text: str) -> Rank:
    script = folder / f"rank{number}.py"
    script.write_text(text)
    log = RankLog(folder, number)
    environ = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number)}
    return start_rank(number, number, ["script", str(script)], environ, folder / f"e{number}", log)


@pytest.mark.parametrize("together", [True, False], ids=["one terminal", "a pipe and a terminal"])
def test_supervision_and_logs_go_on_and_dropped_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr("dist_train.jobs.terminal_writer.QUEUE_BYTES", 1 << 20)
    stopped = StoppedReader()
    err = StoppedReader() if not together else stopped
    output = RankOutput("host", out=stopped.stream, err=err.stream)
    ended: dict[int, float] = {}
    ranks = [start(tmp_path, 0, PRINTS), start(tmp_path, 1, DIES)]
    began = time.monotonic()
    workers = Workers(
        ranks,
        output,
        lambda rank: ended.setdefault(rank.rank, time.monotonic() - began),
        lambda r: ExitMark(),
    )
    while not workers.all_ended and time.monotonic() < began + 20:
        time.sleep(0.05)
    assert sorted(ended) == [0, 1], "an end was not seen while the terminal stood still"
    workers._thread.join(20)
    assert ranks[0].log.path.read_bytes().count(b"\n") == LINES
    output.note("one more word")
    readers = [stopped.read_all(), *([] if together else [err.read_all()])]
    assert output.close(20.0) == 0
    for pipe in {stopped.stream, err.stream}:
        pipe.close()
    for reader in readers:
        reader.join(20)
    dropped = re.findall(r"\[dist-train host\] (\d+) lines of output were not shown", err.text)
    assert len(dropped) == 1, err.text[-500:]
    shown = [line for line in stopped.text.splitlines() if re.fullmatch(r"\d{99}", line)]
    assert 0 < len(shown) < LINES
    assert len(shown) + int(dropped[0]) == LINES
    assert shown == sorted(shown)
    assert "one more word" in err.text


def test_output_that_cannot_be_written_is_said_once() -> None:
    err = StoppedReader()
    with open("/dev/full", "w") as full:
        output = RankOutput("host", out=full, err=err.stream)
        for _ in range(3):
            output.pass_on(b"a line of rank 0\n")
            time.sleep(0.05)
        assert output.close(20.0) == 0
    reader = err.read_all()
    err.stream.close()
    reader.join(20)
    assert err.text.splitlines() == [
        "[dist-train host] the ranks' output cannot be written here: No space left on device; "
        "the log files have every line (dist-train logs)"
    ]


@pytest.mark.parametrize("together", [True, False], ids=["one terminal", "a pipe and a terminal"])
def test_of_a_reader_that_has_gone_nothing_is_said(together: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    err = StoppedReader()
    with os.fdopen(write, "wb", buffering=0) as gone:
        stream = io.TextIOWrapper(gone, write_through=True)
        output = RankOutput("host", out=stream, err=stream if together else err.stream)
        output.pass_on(b"a line of rank 0\n")
        assert output.close(20.0) == 0
    reader = err.read_all()
    err.stream.close()
    reader.join(20)
    assert err.text == ""


def test_an_agent_does_not_wait_for_ever_for_its_last_words() -> None:
    stopped = StoppedReader()
    output = RankOutput("host", out=stopped.stream, err=stopped.stream)
    output.pass_on(b"x\n" * 500_000)
    began = time.monotonic()
    left = output.close(0.3)
    assert 0 < left <= 500_000
    assert time.monotonic() - began < 10.0
    reader = stopped.read_all()
    taken = -1
    while taken != len(stopped.text):  # let whoever writes go on
        taken = len(stopped.text)
        time.sleep(0.3)
    stopped.stream.close()
    reader.join(5.0)


def test_a_reader_that_is_only_slow_gets_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dist_train.jobs.terminal_writer.QUEUE_BYTES", 4 << 20)
    read, write = os.pipe()
    taken = bytearray()

    def slowly() -> None:
        while chunk := os.read(read, 1 << 15):
            taken.extend(chunk)
            time.sleep(0.005)

    reader = threading.Thread(target=slowly, daemon=True)
    reader.start()
    stream = os.fdopen(write, "w")
    output = RankOutput("host", out=stream, err=stream)
    workers = Workers([start(tmp_path, 0, PRINTS)], output, lambda rank: None, lambda rank: ExitMark())
    deadline = time.monotonic() + 40
    while not workers.all_ended and time.monotonic() < deadline:
        time.sleep(0.05)
    workers._thread.join(20)
    assert output.close(20.0) == 0
    stream.close()
    reader.join(20)
    assert taken.count(b"\n") == LINES
