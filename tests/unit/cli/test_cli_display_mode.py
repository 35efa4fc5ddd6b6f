"""`--progress` by option and terminal; an impossible one is refused before anything is submitted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_train.cli.live.display_mode import choose
from dist_train.errors import UsageError

HERE: Any = SimpleNamespace(name="local", run_dir_on_nodes=lambda spec: None)
ELSEWHERE: Any = SimpleNamespace(name="kubernetes", run_dir_on_nodes=lambda spec: Path("/runs"))
SPEC: Any = None
XTERM = {"TERM": "xterm"}
BOTH, OUT_PIPED, ERR_PIPED, NEITHER = (True, True), (False, True), (True, False), (False, False)


@pytest.mark.parametrize(
    ("asked", "environ", "terminals", "chosen"),
    [
        (None, XTERM, BOTH, "live"),
        ("auto", XTERM, BOTH, "live"),
        (None, XTERM, OUT_PIPED, "plain"),  # launch | cat
        (None, XTERM, ERR_PIPED, "plain"),  # launch 2> log
        (None, XTERM, NEITHER, "plain"),
        (None, {**XTERM, "NO_COLOR": "1"}, BOTH, "plain"),
        (None, {**XTERM, "NO_COLOR": ""}, BOTH, "live"),
        (None, {"TERM": "dumb"}, BOTH, "plain"),
        (None, {}, BOTH, "plain"),
        ("live", XTERM, OUT_PIPED, "live"),
        ("live", {**XTERM, "NO_COLOR": "1"}, BOTH, "live"),  # without colours
        ("plain", XTERM, BOTH, "plain"),
        ("none", XTERM, BOTH, "none"),
        ("none", {"TERM": "dumb"}, NEITHER, "none"),
    ],
)
def test_progress_is_resolved_by_option_and_terminal(
    asked: str | None, environ: dict[str, str], terminals: tuple[bool, bool], chosen: str
) -> None:
    assert choose(asked, HERE, SPEC, environ, terminals) == chosen


def test_with_records_on_the_nodes_it_is_plain() -> None:
    assert choose(None, ELSEWHERE, SPEC, XTERM, BOTH) == "plain"


@pytest.mark.parametrize(
    ("launcher", "environ", "terminals", "words"),
    [
        (HERE, XTERM, ERR_PIPED, "stderr is not a terminal"),
        (HERE, {"TERM": "dumb"}, BOTH, "TERM names no terminal that can"),
        (ELSEWHERE, XTERM, BOTH, "the records of a kubernetes run are on its nodes"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused(
    launcher: Any, environ: dict[str, str], terminals: tuple[bool, bool], words: str
) -> None:
    with pytest.raises(UsageError, match="a panel cannot be drawn here") as caught:
        choose("live", launcher, SPEC, environ, terminals)
    assert words in str(caught.value)
    assert "--progress plain" in str(caught.value)


def test_launch_resume_and_logs_refuse_it_and_leave_nothing(
    here: Any, make_run: Any, dist_train: Any
) -> None:
    script = here / "train.py"
    script.write_text("")
    said = dist_train("launch", "--device", "cpu", "--progress", "live", script)
    assert (said.code, "a panel cannot be drawn here" in said.err) == (2, True)
    assert not (here / "runs").exists()
    make_run("a-1").began().finished(1)
    for words in (["resume", "--progress", "live"], ["logs", "-f", "--progress", "live"]):
        said = dist_train(*words)
        assert (said.code, "a panel cannot be drawn here" in said.err) == (2, True), words
    said = dist_train("logs", "--progress", "live")
    assert (said.code, "--follow is missing" in said.err) == (2, True)
    said = dist_train("launch", "--progress", "lively", script)
    assert (said.code, "lively" in said.err) == (2, True)


def test_progress_none_with_a_closed_stdout(make_run: Any, here: Any) -> None:
    made = make_run("a-1").began()
    made.log(0, "something").finished(0)
    words = f"{sys.executable} -P -m dist_train.cli.main logs -f --progress none >&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_opened_file_replaces_a_closed_stream(tmp_path: Path, closed: str) -> None:
    """An agent whose stdout was our pipe's other end waited for ever."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib\nfrom dist_train.cli import main\nmain.run = lambda argv: 0\n"
        "try:\n    main.main([])\nexcept SystemExit:\n"
        "    inherited = [os.get_inheritable(number) for number in (0, 1, 2)]\n"
        "    pathlib.Path('result').write_text(f'{min(os.pipe())} {inherited}')\n"
    )
    subprocess.run(
        ["sh", "-c", f"{sys.executable} -P {program} {closed}"], cwd=tmp_path, timeout=60, check=True
    )
    lowest, inherited = (tmp_path / "result").read_text().split(" ", 1)
    assert int(lowest) > 2
    assert inherited == "[True, True, True]"


def test_logs_that_are_followed_can_leave_progress_out(make_run: Any, here: Any) -> None:
    made = make_run("a-1").began().trained(10, epochs=2, total_steps=20, samples=80)
    made.log(0, "epoch 1/2  step 10/20  loss 0.5000  lr 0.1", "something else").finished(0)
    argv = [sys.executable, "-P", "-m", "dist_train.cli.main", "logs", "-f", "--progress"]
    for how, lines in (("none", 1), ("plain", 2)):
        done = subprocess.run([*argv, how], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == lines
        assert done.stdout.endswith("[rank 0] something else\n")
