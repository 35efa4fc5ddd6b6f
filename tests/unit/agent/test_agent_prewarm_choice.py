"""Which command lines begin the import of torch before they are parsed, and for what."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dist_train import env
from dist_train.cli.main import main
from dist_train.prewarm import prewarmed_agent
from dist_train.prewarm.agent_handle import ForkedAgent
from dist_train.prewarm.import_choice import EarlyImport, choose_import
from dist_train.prewarm.prewarmed_agent import AgentStart, take_prewarmed


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a command has it: torch is not imported, nobody traces, and an empty folder."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setattr(sys, "getprofile", lambda: None)
    monkeypatch.chdir(tmp_path)


def chosen(line: str, gpu_files: tuple[str, ...] = (), **environ: str) -> EarlyImport | None:
    return choose_import(line.split(), environ, gpu_files)


@pytest.mark.parametrize(
    "line",
    [
        "launch train.py",
        "launch --nproc-per-node 4 train.py --lr 0.1",
        "launch --device cpu -m package.train",
        "launch --launcher local --nodes=2 train.py",
        "launch --env A=b train.py",
    ],
)
def test_a_local_launch_on_the_cpu_begins_the_import(line: str) -> None:
    assert chosen(line) == EarlyImport(1, False)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "status",
        "launch --help",
        "launch -h",
        "launch train.yaml --help",
        "launch --dry-run train.py",
        "launch --dry_run train.py",
        "launch train.yaml --dry-run",
        "launch --detach train.py",
        "launch --launcher slurm train.py",
        "launch --launcher=kubernetes train.py",
        "launch train.yaml launch.launcher=slurm",
        "launch --device cuda train.py",
        "launch --gpus 0,1 train.py",
        "launch --env DIST_TRAIN_START_METHOD=spawn train.py",
        "launch --env=DIST_TRAIN_START_METHOD=fork train.py",
    ],
)
def test_where_no_agent_may_start_here_nothing_begins(line: str) -> None:
    assert chosen(line) is None


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_start_method_switches_it_off(method: str) -> None:
    assert chosen("launch train.py", **{env.START_METHOD: method}) is None
    assert chosen("launch train.py", **{env.START_METHOD: "auto"}) is not None


def test_what_a_fork_of_the_agent_could_not_be_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("launch train.py", LD_PRELOAD="/lib/x.so") is None
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    assert chosen("launch train.py") is None


def test_where_there_may_be_gpus_only_a_launch_on_the_cpu_begins(tmp_path: Path) -> None:
    gpu = tmp_path / "nvidiactl"
    gpu.touch()
    assert chosen("launch train.py", (str(gpu),)) is None
    assert chosen("launch --device cpu train.py", (str(gpu),)) is not None


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("name: a\n", "", EarlyImport(1, True)),
        ("threads_per_rank: 3\n", "", EarlyImport(3, True)),
        ("threads_per_rank: 3\n", "threads_per_rank=2", EarlyImport(2, True)),
        ("launch:\n  launcher: slurm\n", "", None),
        ("launch:\n  launcher: local\n", "", EarlyImport(1, True)),
        ("launch: {device: cuda}\n", "", None),
        ("launch: {device: cuda}\n", "--device cpu", EarlyImport(1, True)),
        ("launch:\n  env:\n    DIST_TRAIN_START_METHOD: spawn\n", "", None),
    ],
)
def test_a_config_is_looked_at(tmp_path: Path, text: str, words: str, expected: EarlyImport | None) -> None:
    (tmp_path / "train.yaml").write_text(text)
    assert chosen(f"launch train.yaml {words}") == expected


def test_a_config_that_can_be_read_only_once_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.yaml")
    assert chosen("launch train.yaml") == EarlyImport(1, True)


def test_the_threads_are_those_of_the_plan() -> None:
    assert chosen("launch train.py", OMP_NUM_THREADS="4") == EarlyImport(4, False)
    assert chosen("launch --env OMP_NUM_THREADS=2 train.py", OMP_NUM_THREADS="4") == EarlyImport(2, False)
    assert chosen("launch train.py", OMP_NUM_THREADS="4,2") == EarlyImport(1, False)
    assert chosen("launch train.py", OMP_NUM_THREADS="²") == EarlyImport(1, False)  # a digit, no number


class Begun:
    """A prewarmed process that was begun with this environment."""

    def __init__(self, **early: str) -> None:
        self.ended = False
        self.agent = object.__new__(prewarmed_agent.PrewarmedAgent)
        self.agent._environ = {"OMP_NUM_THREADS": "1", **early}
        self.agent._process = subprocess.Popen(["sleep", "60"])
        self.agent.end = self.end  # type: ignore[method-assign]
        self.agent.become = lambda starts, listener: [self.agent._process]  # type: ignore[method-assign]

    def end(self) -> None:
        self.ended = True
        self.agent._process.kill()
        self.agent._process.wait()


@pytest.mark.parametrize(
    ("environ", "threads", "device", "taken"),
    [
        ({}, 1, "cpu", True),
        ({"FOO": "1"}, 1, "cpu", True),
        ({"MKL_DEBUG_CPU_TYPE": "5"}, 1, "cpu", False),
        ({}, 2, "cpu", False),
        ({}, 1, "cuda", False),
    ],
)
def test_it_is_taken_over_only_where_the_plan_is_what_was_expected(
    environ: dict[str, str], threads: int, device: str, taken: bool
) -> None:
    begun = Begun()
    prewarmed_agent._begun.append(begun.agent)
    try:
        found = take_prewarmed([AgentStart([], environ, 1, None)], 5, threads, device)
        assert (found is not None, begun.ended) == (taken, not taken)
        assert not prewarmed_agent._begun
    finally:
        begun.end()


def test_nothing_that_has_become_an_agent_is_left_to_the_garbage_collector() -> None:
    """Under PYTHONWARNINGS=error and PYTHONDEVMODE=1 a socket that was not closed is said on the terminal."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    begun = Begun()
    del begun.agent.become, begun.agent.end
    begun.agent._connection, begun.agent._pids = ours, None
    try:
        assert begun.agent.become([AgentStart([], {}, 1, None)], ours.fileno()) == [begun.agent._process]
        assert ours.fileno() == -1
        message, descriptors, _, _ = socket.recv_fds(theirs, 100, 8)
        assert (message, len(descriptors)) == (prewarmed_agent.MESSAGE, 4)
        for descriptor in descriptors:
            os.close(descriptor)
    finally:
        theirs.close()
        ours.close()
        begun.end()


def test_signals_reach_an_agent_that_is_forked_later() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    known: list[int] = []
    agent = ForkedAgent(lambda: known[0] if known else None)
    agent.send_signal(signal.SIGTERM)
    assert agent.poll() is None
    known.append(child)
    assert agent.wait(10) == -signal.SIGTERM
    agent.kill()  # it has been reaped: nobody is signalled


def test_an_agent_that_is_never_forked_was_killed() -> None:
    agent = ForkedAgent(lambda: 0)
    agent.kill()
    assert agent.poll() == -signal.SIGKILL


def test_ctrl_c_while_it_begins_ends_the_command_as_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prewarmed_agent, "choose_import", interrupted)
    with pytest.raises(SystemExit) as left:
        main(["launch", "train.py"])
    assert left.value.code == 130


def record(
    folder: Path, kind: str = "script", device: str = "cpu", launcher: str = "local", **spec: object
) -> Path:
    """The record of a run, as launch writes it."""
    folder.mkdir(parents=True)
    target = {"kind": kind, "value": "train.py", "args": [], "folder": "/"}
    job = {"target": target, "device": device, "threads_per_rank": 3, "env": [], **spec}
    (folder / "job.json").write_text(json.dumps({"launcher": launcher, "handle": "local:1", "spec": job}))
    return folder


@pytest.mark.parametrize(
    "words", ["a", "--nodes 2 a", "runs/a", "--profile=none a", "", "@last", "--nodes 2"]
)
def test_a_resume_of_a_local_run_begins_the_import_that_its_record_asks_for(
    tmp_path: Path, words: str
) -> None:
    record(tmp_path / "runs" / "a", kind="config")
    assert chosen(f"resume {words}") == EarlyImport(3, True)


def test_of_several_runs_the_named_one_counts_and_else_the_newest(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "a", kind="config")
    record(tmp_path / "runs" / "b", kind="script")
    os.utime(tmp_path / "runs" / "a" / "job.json", (1, 1))
    assert chosen("resume a") == EarlyImport(3, True)
    assert chosen("resume") == EarlyImport(3, False)


@pytest.mark.parametrize(
    "spec",
    [
        {"launcher": "slurm"},
        {"device": "cuda"},
        {"env": [["DIST_TRAIN_START_METHOD", "spawn"]]},
        {"threads_per_rank": "many"},
        {"target": None},
    ],
)
def test_a_resume_of_which_no_agent_starts_here_or_not_so_begins_nothing(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    record(tmp_path / "runs" / "a", **spec)
    assert chosen("resume a") is None


def test_a_resume_that_starts_nothing_begins_nothing(tmp_path: Path) -> None:
    assert chosen("resume") is None
    done = record(tmp_path / "runs" / "a")
    for words in ("--dry-run a", "--detach a", "a --help"):
        assert chosen(f"resume {words}") is None
    assert chosen("resume a", LD_PRELOAD="x.so") is None
    (done / "result.json").touch()
    assert chosen("resume a") is None
    (done / "job.json").write_text("[")
    assert chosen("resume a") is None
