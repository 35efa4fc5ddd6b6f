"""The terminal of a job that is followed: output scrolls above the panel, and nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dist_train.cli.live.screen import cells, readable
from dist_train.testing.pseudo_terminal import Terminal, python

# A command with a panel of two lines that counts its paintings, around BODY.
PROGRAM = """
import os, subprocess, sys, time
from dist_train.cli.live.screen import Screen

painted = 0
def paint(columns, rows):
    global painted
    painted += 1
    return [f"panel {painted}"[:columns], "second line"[:columns]]

def until_painted(number):
    while painted < number:
        time.sleep(0.01)
"""


def on_terminal(folder: Path, body: str, **how: object) -> Terminal:
    return Terminal(python(PROGRAM + body), folder, **how)  # type: ignore[arg-type]


def test_output_of_the_command_and_its_children_is_above_the_panel(tmp_path: Path) -> None:
    body = """
with Screen(paint):
    until_painted(1)
    print("from here")
    child = "import sys; print('from a child'); print('oops', file=sys.stderr)"
    subprocess.run([sys.executable, "-c", child])
    until_painted(3)
    print("without an end", end="")
print("\\nafter")
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    # The child's streams meet in one terminal, in no order between them.
    lines = terminal.lines
    assert (lines[0], sorted(lines[1:3]), lines[3:]) == (
        "from here",
        ["from a child", "oops"],
        ["without an end", "", "after", ""],
    )
    assert "panel 1" in terminal.text
    assert "\x1b[?25l" not in terminal.text, "the cursor is never hidden: nothing needs to bring it back"


def test_a_panel_stays_below_while_it_runs_and_a_kill_leaves_the_cursor_below_it(tmp_path: Path) -> None:
    body = """
with Screen(paint):
    for number in range(3):
        print("line", number)
        until_painted(painted + 1)
    print("now")
    until_painted(painted + 2)
    os.kill(os.getpid(), 9)
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == -signal.SIGKILL
    lines = terminal.lines
    assert lines[:4] == ["line 0", "line 1", "line 2", "now"]
    assert lines[4].startswith("panel ")
    assert lines[5:] == ["second line", ""]


@pytest.mark.parametrize(("end", "code"), [("raise SystemExit(3)", 3), ("raise ValueError('mine')", 1)])
def test_every_exit_removes_the_panel(tmp_path: Path, end: str, code: int) -> None:
    terminal = on_terminal(tmp_path, f"\nwith Screen(paint):\n    until_painted(1)\n    {end}\n")
    assert terminal.end() == code
    assert not [line for line in terminal.lines if line.startswith(("panel", "second"))]


def test_output_cannot_move_the_cursor_and_keeps_its_colours(tmp_path: Path) -> None:
    body = """
with Screen(paint):
    until_painted(1)
    print("first\\n\\x1b[2Asecond")
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    assert terminal.lines == ["first", "second", ""]
    assert (
        readable("\x1b[2Aup \x1b[31mred\x1b[0m \x1b]0;title\x07end\x07") == "up \x1b[31mred\x1b[0m end\x1b[0m"
    )
    assert readable("10 %\r50 %\r100 %\r") == "100 %"
    assert readable("plain\ttext") == "plain\ttext"
    assert cells("\x1b[1m表\x1b[0m!") == 3


def test_a_line_that_the_panel_repeats_is_not_shown(tmp_path: Path) -> None:
    body = """
with Screen(paint, lambda line: not line.startswith("step ")):
    print("step 1"), print("steps and more"), print("step 2")
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    assert terminal.lines == ["steps and more", ""]


def test_a_failing_panel_is_reported_once_and_the_output_goes_on(tmp_path: Path) -> None:
    body = """
def broken(columns, rows):
    raise RuntimeError("no panel")
with Screen(broken):
    print("one")
    time.sleep(0.2)
    print("two")
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    said = [line for line in terminal.lines if "live view failed" in line]
    assert len(said) == 1
    assert "no panel" in said[0]
    assert [line for line in terminal.lines if line in ("one", "two")] == ["one", "two"]


def test_without_a_panel_it_only_filters_lines(tmp_path: Path) -> None:
    body = """
with Screen(None, lambda line: line != "step 1", captured=(1,)):
    print("step 1\\n\\x1b[2Akept as it is")
    print("on stderr", file=sys.stderr)
"""
    done = subprocess.run(python(PROGRAM + body), capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("\x1b[2Akept as it is\n", "on stderr\n")


def test_a_closed_stdout_is_no_reason_for_no_panel(tmp_path: Path) -> None:
    body = """
with Screen(paint, captured=(2,)):
    until_painted(1)
    print("above", file=sys.stderr)
"""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + body)
    terminal = Terminal(["sh", "-c", f"{sys.executable} -P program.py >&-"], tmp_path)
    assert terminal.end() == 0
    assert terminal.lines == ["above", ""]


def test_more_output_than_a_pipe_holds_arrives_whole_and_in_order(tmp_path: Path) -> None:
    body = """
with Screen(paint):
    for number in range(15_000):
        print("line", number, "x" * 90)
"""
    terminal = on_terminal(tmp_path, body, columns=200)
    assert terminal.end() == 0
    assert [int(number) for number in re.findall(r"line (\d+) x{90}", terminal.text)] == [*range(15_000)]


def test_a_command_in_the_background_of_its_shell_draws_no_panel(tmp_path: Path) -> None:
    # Only a controlling terminal has a foreground: the program makes this one its own, and leaves it.
    body = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    with Screen(paint):
        print("in the background")
        time.sleep(0.3)
    os._exit(painted)
print("panels:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    assert terminal.lines == ["in the background", "panels: 0", ""]


def test_ctrl_z_leaves_nothing_drawn_and_nothing_of_the_shell_is_cleared_afterwards(tmp_path: Path) -> None:
    # A shell in small: the command has a group of its own, which is stopped and continued.
    body = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
painted_once, say = os.pipe()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    with Screen(paint):
        until_painted(2)
        os.write(say, b"p")
        until_painted(4)
        print("after")
    os._exit(0)
os.setpgid(child, child)
os.tcsetpgrp(0, child)
os.read(painted_once, 1)
os.kill(child, signal.SIGTSTP)
assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
print("stopped", "$ fg", sep="\\n", flush=True)
os.kill(child, signal.SIGCONT)
print("ended", os.waitpid(child, 0)[1])
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0
    assert terminal.lines == ["stopped", "$ fg", "after", "ended 0", ""]


def test_what_is_folded_by_a_narrower_window_is_cleared_whole() -> None:
    from dist_train.cli.live.screen import Screen

    screen = Screen(None, captured=(1,))
    try:
        screen._drawn = [70, 30, 0]
        assert screen._erase(80) == "\r\x1b[3A\x1b[J"
        assert screen._erase(40) == "\r\x1b[4A\x1b[J"
    finally:
        for descriptor in (screen._read, screen._write, *screen._before.values()):
            os.close(descriptor)


def test_a_progress_bar_shows_above_the_panel_while_it_grows(tmp_path: Path) -> None:
    # How often the panel is painted until it shows depends on when it is read: the next waits for it.
    body = """
with Screen(paint):
    for number in range(3):
        os.write(1, b"\\r %d0%%|##" % number)
        while not os.path.exists(f"seen-{number}"):
            time.sleep(0.01)
    os.write(1, b"\\rdone\\n")
"""
    terminal = on_terminal(tmp_path, body)
    for number in range(3):
        terminal.wait_for(f" {number}0%|##\r\npanel ")
        (tmp_path / f"seen-{number}").touch()
    assert terminal.end() == 0
    assert terminal.lines == ["done", ""]


def test_an_unfinished_line_shows_without_a_panel_too(tmp_path: Path) -> None:
    body = """
with Screen(None, lambda line: not line.startswith("step ")):
    os.write(1, b"step 1\\nloading")
    time.sleep(1.5)
    os._exit(3)
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 3
    assert terminal.lines == ["loading"]


@pytest.mark.parametrize("painter", ["paint", "None"])
def test_output_without_a_newline_costs_linear_time(tmp_path: Path, painter: str) -> None:
    body = f"""
began = time.monotonic()
for number in range(2):
    os.dup2(os.open("out", os.O_WRONLY | os.O_CREAT), 1)
with Screen({painter}, captured=(1,)):
    for _ in range(48):
        os.write(1, b"x" * (1 << 20))
took = time.monotonic() - began
print(took, file=sys.stderr)
sys.exit(took > 5.0)
"""
    terminal = on_terminal(tmp_path, body)
    assert terminal.end() == 0, terminal.text
    assert (tmp_path / "out").read_bytes().count(b"x") == 48 << 20
