"""The live view of real runs, on a terminal that the test reads: output above, panel below, a clean end."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import WORKLOADS, nothing_left, wait_for_step

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.testing.pseudo_terminal import Terminal

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]

# A minimal script.
SCRIPT = """
import time
import dist_train as dt

run = dt.init(seed=0)
for step in range(1, 100_000):
    run.log(step=step, total_steps=100_000, loss=1 / step)
    if step % 50 == 1 and run.is_main:
        print(f"output at step {step}", flush=True)
    if run.should_stop():
        run.close()
        raise SystemExit(75)
    time.sleep(0.01)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """`terminal("name", "--gpus-per-node", 2, "train.py")`: a launch on a terminal of 80 columns."""
    begun: list[Terminal] = []

    def launch(name: str, *words: object, **how: Any) -> Terminal:
        argv = [sys.executable, "-P", "-m", "dist_train.cli.main", "launch", "--name", name]
        begun.append(Terminal([*argv, "--device", "cpu", *map(str, words)], tmp_path, **how))
        return begun[-1]

    yield launch
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def shown(text: str) -> str:
    """The output without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def run_id(run: RunDir) -> str:
    import json

    return str(json.loads(run.job.read_text())["spec"]["run_id"])


@pytest.mark.proves(
    "The live panel leaves a clean terminal on Ctrl-C, on a second one, and when `launch` is killed; a pipe "
    "gets no escape code",
    limits="pseudo-terminal",
)
def test_a_script_is_followed_and_ctrl_c_saves_and_leaves_the_terminal_clean(
    terminal: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    run = RunDir(tmp_path / "runs" / "mine")
    launched = terminal("mine", "mine.py")
    launched.wait_for("ETA", 60)
    launched.process.send_signal(signal.SIGINT)
    assert launched.end() == 130
    assert re.search(r"mine  step \d+/100000  .*ETA \d+:\d\d  elapsed 0:\d\d", shown(launched.text))
    assert re.search(r"^loss \d", shown(launched.text), re.MULTILINE)
    assert "\x1b[?25l" not in launched.text, "the cursor was hidden"
    lines = launched.lines
    assert not [line for line in lines if "elapsed" in line], lines
    assert "output at step 1" in lines
    assert "[dist-train] Ctrl-C: saving and stopping; once more kills" in lines
    assert f"dist-train resume {run.path}" in "".join(lines[-3:])
    assert nothing_left(run_id(run))


@pytest.mark.proves(
    "The live panel leaves a clean terminal on Ctrl-C, on a second one, and when `launch` is killed; a pipe "
    "gets no escape code",
    limits="pseudo-terminal",
)
@pytest.mark.proof
def test_a_pipe_gets_no_escape_code_nor_does_the_terminal_beside_it(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys; print('hello'); print('oh', file=sys.stderr)\n")
    with (tmp_path / "out.txt").open("wb") as out:
        launched = terminal("hello", "hello.py", stdout=out.fileno())
        assert launched.end(60) == 0
    assert (tmp_path / "out.txt").read_text() == "hello\n"
    assert "oh" in launched.text
    assert "\x1b" not in launched.text


@pytest.mark.proof
def test_a_killed_agent_is_replaced_below_the_same_panel(terminal: Any, tmp_path: Path) -> None:
    config = (WORKLOADS / "digits.yaml", "trainer.epochs=6", "trainer.log_every_steps=1")
    launched = terminal("digits", "--nodes", 2, "--gpus-per-node", 1, *config)
    run = RunDir(tmp_path / "runs" / "digits")
    wait_for_step(run, 1)
    title = f"dist-train agent node=1 run={run.path}"
    # By `info`, which is None for a process that has just ended.
    found = psutil.process_iter(["cmdline"])
    agents = [process for process in found if (process.info["cmdline"] or [""])[0] == title]
    assert len(agents) == 1
    agents[0].kill()
    assert launched.end(120) == 0
    text = shown(launched.text)
    assert "a node was lost: starting all nodes again" in text
    for words in ("Time 0.", "Data 0.", "Compute 0.", "memory ", "slowest rank ", "checkpoint step "):
        assert words in text, words
    assert "attempt 2, restarts 1" in text
    lines = launched.lines
    assert not [line for line in lines if "elapsed" in line or line.startswith("epoch ")], lines
    evaluations = [line for line in lines if line.startswith("evaluation after epoch 6/6")]
    assert len(evaluations) == 1
    assert [line for line in lines if line.startswith("  accuracy ")], "the table of a good end"
    assert nothing_left(run_id(run))


@pytest.mark.proves(
    "The live panel leaves a clean terminal on Ctrl-C, on a second one, and when `launch` is killed; a pipe "
    "gets no escape code",
    limits="pseudo-terminal",
)
@pytest.mark.proof
def test_a_second_ctrl_c_kills_and_leaves_the_terminal_clean(terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('at work', flush=True)\n"
        "time.sleep(600)\n"
    )
    launched = terminal("deaf", "deaf.py")
    launched.wait_for("at work", 60)
    launched.process.send_signal(signal.SIGINT)
    launched.wait_for("Ctrl-C: saving and stopping")
    launched.process.send_signal(signal.SIGINT)
    assert launched.end() == 130
    assert not [line for line in launched.lines if "elapsed" in line]
    assert nothing_left(run_id(RunDir(tmp_path / "runs" / "deaf")))


@pytest.mark.proves(
    "The live panel leaves a clean terminal on Ctrl-C, on a second one, and when `launch` is killed; a pipe "
    "gets no escape code",
    limits="pseudo-terminal",
)
@pytest.mark.proof
def test_a_killed_launch_leaves_a_clean_line_and_its_ranks_save(terminal: Any, tmp_path: Path) -> None:
    launched = terminal("text", "--gpus-per-node", 2, WORKLOADS / "text.yaml", "trainer.steps=100000")
    run = RunDir(tmp_path / "runs" / "text")
    wait_for_step(run, 1)
    before = newest_step(run)
    launched.wait_for("elapsed")
    launched.process.kill()
    assert nothing_left(run_id(run), within_s=40)
    assert launched.end() == -signal.SIGKILL
    assert "\x1b[?25l" not in launched.text
    assert launched.lines[-1] == "", "a shell's prompt begins a line of its own"
    assert (newest_step(run) or 0) > (before or 0)
