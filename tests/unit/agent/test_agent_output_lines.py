"""A rank's output is cut into lines; a progress bar shows how it stands, and is not kept."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from dist_train.agent.workers import output_lines
from dist_train.agent.workers.output_lines import OutputLines
from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import start_rank
from dist_train.agent.workers.rank_output import RankLog, RankOutput
from dist_train.rundir.stop_file import ExitMark


@pytest.mark.parametrize(
    ("chunks", "lines", "rest"),
    [
        ([b"a\nb", b"c\n"], [b"a", b"bc"], b""),
        ([b"\n\nno end"], [b"", b""], b"no end"),
        ([b"dos\r\n"], [b"dos"], b""),
        ([b"\r 10%", b"\r 20%", b"\r100%\n", b"next\n"], [b"100%", b"next"], b""),
        ([b"10%\r", b"20%\r", b"\ndone\n"], [b"20%", b"done"], b""),
        ([b"\r10%", b"\r   \rtext of tqdm.write\n\r10%"], [b"text of tqdm.write"], b"10%"),
    ],
)
def test_lines_are_cut_and_what_was_written_over_is_dropped(
    chunks: list[bytes], lines: list[bytes], rest: bytes
) -> None:
    output = OutputLines()
    assert [line for chunk in chunks for line in output.feed(chunk)] == lines
    assert output.rest() == rest


def test_the_state_of_a_bar_is_shown_now_and_then_while_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    output = OutputLines()
    output.feed(b"\r10%")
    assert output.state() is None
    monkeypatch.setattr(output_lines, "_STATE_EVERY_S", 0.0)
    assert [output.state(), output.state()] == [b"10%", None]
    output.feed(b"\r20%")
    assert output.state() == b"20%"
    output.feed(b"\nLoading, without an end of line ")
    assert output.state() is None


def test_a_bar_is_not_kept_and_an_endless_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    output = OutputLines()
    for percent in range(100):
        output.feed(b"\r%3d%%" % percent)
    assert len(output._partial) == 4
    assert output.rest() == b" 99%"
    monkeypatch.setattr(output_lines, "_LONGEST", 100)
    assert output.feed(b"x" * 60) == []
    assert output.feed(b"x" * 60) == [b"x" * 120]


def test_a_bar_of_a_rank_is_seen_before_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lines, "_STATE_EVERY_S", 0.1)
    monkeypatch.setattr("dist_train.agent.workers.rank_output._FOLD_S", 0.1)
    script = tmp_path / "train.py"
    script.write_text(r"""
import sys, time
for percent in range(1000):
    sys.stderr.write(f"\r{percent:3d} per mille")
    time.sleep(0.02)
""")
    rank = start_rank(
        0, 0, ["script", str(script)], os.environ, tmp_path / "error", RankLog(tmp_path / "log")
    )
    terminal = io.StringIO()
    workers = Workers(
        [rank], RankOutput("host", err=terminal), lambda rank: None, lambda rank: ExitMark(None, False)
    )
    deadline = time.monotonic() + 10
    try:
        while "per mille" not in terminal.getvalue() and not workers.all_ended:
            assert time.monotonic() < deadline, "nothing was shown"
            time.sleep(0.05)
    finally:
        workers.kill(dump_stacks=False)
    assert terminal.getvalue().splitlines()[0].count("per mille") == 1, terminal.getvalue()
