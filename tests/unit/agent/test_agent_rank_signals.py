"""SIGTERM in a rank, which inherits it blocked: its children, its handlers, its interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dist_train import env
from dist_train.rundir.stop_file import StopFile

TERMINATE = """
import multiprocessing, subprocess, sys, time

if __name__ == "__main__":
    if sys.argv[1] == "popen":
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        print(child.wait(5))
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=time.sleep, args=(60,), daemon=True)
        child.start()
        child.terminate()
        child.join(5)
        print(child.exitcode)
        child.kill()
"""
# One worker, that the rank or (by `kill`) another process ends while it reads its sample.
LOADER = """
import os, signal, subprocess, sys, time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        time.sleep(60 if sys.argv[1] == "parent" else 0.5)
        return index

batches = iter(torch.utils.data.DataLoader(Slow(), num_workers=1, multiprocessing_context="fork"))
worker = batches._workers[0]
time.sleep(0.2)
if sys.argv[1] == "parent":
    worker.terminate()
    worker.join(5)
    print(worker.exitcode)
    worker.kill()
else:
    subprocess.run(["kill", "-TERM", str(worker.pid), str(os.getpid())])
    print([int(batch) for batch in batches])
"""
HANDLES = """
import os, signal, sys, time

def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)

if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, save)
if sys.argv[1] == "chained":
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: (before(number, frame), save(number, frame)))
print("up", flush=True)
time.sleep(1 if sys.argv[1] == "not-from-the-agent" else 60)
print("finished", flush=True)
"""


def begin(folder: Path, text: str, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start a rank as the agent does: SIGTERM and SIGUSR2 are blocked."""
    script = folder / "train.py"
    script.write_text(text)
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        return subprocess.Popen(
            [*rank, str(script), *words],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def output_of(rank: subprocess.Popen[str]) -> str:
    try:
        return rank.communicate(timeout=30)[0]
    finally:
        rank.kill()


def test_a_signal_to_all_processes_of_a_job_step_ends_no_child(tmp_path: Path) -> None:
    script = """
import os, signal, subprocess, sys

child = subprocess.Popen(["sleep", "60"])
subprocess.run(["kill", "-TERM", str(child.pid), str(os.getpid())])
try:
    child.wait(1)
except subprocess.TimeoutExpired:
    print("saved with it")
child.kill()
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})) == "saved with it\n"


@pytest.mark.parametrize(("step_signals", "blocked"), [("0", []), ("1", ["SIGTERM", "SIGUSR2"])])
def test_neither_a_rank_nor_its_children_have_the_agents_signals_blocked(
    tmp_path: Path, step_signals: str, blocked: list[str]
) -> None:
    script = """
import signal, subprocess, sys

print(sorted(signal.Signals(n).name for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"])
"""
    said = output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: step_signals}))
    assert said == f"{blocked}\n" * 2


@pytest.mark.parametrize(("step_signals", "printed"), [("0", "called\n"), ("1", "blocked\n")])
def test_a_scripts_handler_of_sigusr2_is_called_except_where_the_scheduler_sends_it(
    tmp_path: Path, step_signals: str, printed: str
) -> None:
    script = """
import os, signal

signal.signal(signal.SIGUSR2, lambda number, frame: print("called"))
os.kill(os.getpid(), signal.SIGUSR2)
if signal.SIGUSR2 in signal.sigpending():
    print("blocked")
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: step_signals})) == printed


@pytest.mark.parametrize("how", ["popen", "fork", "spawn"])
def test_terminate_ends_a_child_of_a_rank(tmp_path: Path, how: str) -> None:
    assert output_of(begin(tmp_path, TERMINATE, how)) == f"{-signal.SIGTERM}\n"


def test_a_rank_ends_its_loader_worker_by_sigterm(tmp_path: Path) -> None:
    assert output_of(begin(tmp_path, LOADER, "parent")) == "0\n"


def test_a_signal_to_all_processes_ends_neither_a_rank_nor_its_loader_worker(tmp_path: Path) -> None:
    assert output_of(begin(tmp_path, LOADER, "stranger")) == "[0, 1]\n"


@pytest.mark.parametrize(
    ("script", "interrupts", "code", "printed"),
    [
        ("own", True, 0, "saved\n"),
        ("chained", True, 0, "saved\n"),
        ("none", True, 130, "KeyboardInterrupt"),
        ("not-from-the-agent", False, 0, "finished\n"),
    ],
)
def test_a_stop_calls_the_handler_of_the_script_and_else_interrupts_it(
    tmp_path: Path, script: str, interrupts: bool, code: int, printed: str
) -> None:
    stop_file = StopFile.create(tmp_path / "board", 1)
    stop_file.interrupts = interrupts
    rank = begin(tmp_path, HANDLES, script, **{env.STOP_FILE: str(tmp_path / "board")})
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "up\n"
        time.sleep(0.1)  # until it sleeps
        rank.send_signal(signal.SIGTERM)
        text = output_of(rank)
    finally:
        rank.kill()
    assert (rank.returncode, text.endswith(printed) or printed in text.splitlines()[-1]) == (code, True), text


@pytest.mark.parametrize(
    ("where", "handler", "code"),
    [
        ("finalizer", "", 130),
        ("finalizer", "lambda number, frame: sys.exit(7)", 7),
        ("fork", "default_int_handler", 130),
    ],
)
def test_a_stop_that_python_drops_is_raised_again(
    tmp_path: Path, where: str, handler: str, code: int
) -> None:
    # As in a DataLoader's `__del__`, which joins its workers, and in hooks of os.fork().
    script = f"""
import os, signal, sys, time
from signal import default_int_handler

def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)

class Batches:
    def __del__(self):
        stop()

if {handler!r}:
    signal.signal(signal.SIGTERM, {handler or None})
if {where!r} == "fork":
    os.register_at_fork(before=stop)
    if os.fork() == 0:
        os._exit(0)
else:
    Batches()
time.sleep(5)
print("went on")
"""
    stop_file = StopFile.create(tmp_path / "stop", 1)
    stop_file.interrupts = True
    rank = begin(tmp_path, script, **{env.STOP_FILE: str(tmp_path / "stop")})
    printed = output_of(rank)
    assert (rank.returncode, "went on" in printed, "ignored" in printed) == (code, False, False), printed


def test_a_signal_during_a_fork_interrupts_the_script_after_it(tmp_path: Path) -> None:
    # os.fork() prints and drops what a hook raises, so that an interruption there would be lost.
    script = """
import os, signal, time
from dist_train.agent.workers import rank_signals

rank_signals._before_fork()
os.kill(os.getpid(), signal.SIGTERM)
try:
    rank_signals._in_forking_parent()
except KeyboardInterrupt:
    print("lost in the hook")
time.sleep(5)
print("went on")
"""
    stop_file = StopFile.create(tmp_path / "stop", 1)
    stop_file.interrupts = True
    rank = begin(tmp_path, script, **{env.STOP_FILE: str(tmp_path / "stop")})
    printed = output_of(rank)
    assert rank.returncode == 130, printed
    assert "lost in the hook" not in printed
    assert "went on" not in printed
