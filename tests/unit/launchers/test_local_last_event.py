"""The local supervisor records the end of a run whose agents were lost before they could."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.cli.run.run_summary import summarize
from dist_train.jobs import JobSpec
from dist_train.prewarm.agent_handle import IMPORT_TITLE
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from launchers.local import Supervisor


def supervised(run: RunDir, spec: JobSpec, agent: str) -> int:
    """The exit code of a run whose agents are this shell command."""
    environ = {"DIST_TRAIN_RDZV": "", "DIST_TRAIN_JOB": ""}
    argv = ["sh", "-c", f"cd {run.control}; {agent}"]
    return Supervisor(run, spec, [{"argv": argv, "env": environ}]).run()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    append_event(made, "submitted", launcher="local")
    append_event(made, "attempt_started", 3)
    return made


@pytest.mark.parametrize("allowed", [0, 1])
def test_the_last_loss_is_recorded_as_the_end(run: RunDir, job: Callable[..., JobSpec], allowed: int) -> None:
    code = supervised(run, job(run_dir=run.path, max_restarts=allowed), "kill -9 $$")
    last = list(read_events(run))[-1]
    assert (last["kind"], last["exit_code"], last["attempt"]) == ("finished", code, 3)
    assert "lost" in last["why"]


@pytest.mark.parametrize("kind", ["finished", "preempted"])
def test_an_end_that_agent_0_recorded_stays_the_last_event(
    run: RunDir, job: Callable[..., JobSpec], kind: str
) -> None:
    append_event(run, kind, 3, exit_code=1)
    spec = job(run_dir=run.path, max_restarts=0)
    assert supervised(run, spec, "echo 1 > verdict-local.0; exit 1") == 1
    assert [event["kind"] for event in read_events(run)][-1] == kind
    assert len(list(read_events(run))) == 3


def test_a_start_whose_agent_0_died_before_its_attempt_began_counts_as_a_restart(
    tmp_path: Path, job: Callable[..., JobSpec]
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")
    first = "test -e ../second || { touch ../second; kill -9 $$; }; echo 0 > verdict-local.1"
    assert supervised(run, job(run_dir=run.path, max_restarts=3), first) == 0
    assert summarize(run).restarts == 1
    assert [event["began"] for event in read_events(run, "restarted")] == [False]


def test_a_start_whose_attempt_began_is_counted_by_the_next_agent_0(
    run: RunDir, job: Callable[..., JobSpec]
) -> None:
    first = "test -e ../second || { touch ../second; kill -9 $$; }; echo 0 > verdict-local.1"
    assert supervised(run, job(run_dir=run.path, max_restarts=3), first) == 0
    assert summarize(run).restarts == 0, "its own agent 0 would count the attempt without an end"


def test_ctrl_c_before_any_agent_has_begun_waits_for_no_import(
    tmp_path: Path, job: Callable[..., JobSpec]
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while not (run.path / "imports").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)  # until it has its title
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    # As the process that imports torch: SIGTERM is not heard.
    importing = f"trap '' TERM; touch ../imports; exec bash -c 'exec -a \"{IMPORT_TITLE}1\" sleep 15'"
    began = time.monotonic()
    assert supervised(run, job(run_dir=run.path, max_restarts=3), importing) == 130
    assert time.monotonic() - began < 10.0
    last = list(read_events(run))[-1]
    assert (last["kind"], last["why"]) == ("preempted", "stopped before an attempt had begun")
    assert summarize(run).restarts == 0


def test_ctrl_c_before_the_agents_start_is_obeyed(
    tmp_path: Path, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")

    def interrupted(run: RunDir) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    monkeypatch.setattr("launchers.local.restarts", interrupted)
    started = "touch ../started; sleep 3; echo 0 > verdict-local.0"
    assert supervised(run, job(run_dir=run.path, max_restarts=3), started) == 130
    assert not (run.path / "started").exists()
    assert list(read_events(run))[-1]["why"] == "stopped before an attempt had begun"


def test_sigterm_while_the_agents_are_started_is_passed_on(
    tmp_path: Path, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")

    def terminated(run: RunDir) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr("launchers.local.restarts", terminated)
    spec = job(run_dir=run.path, max_restarts=0)
    assert supervised(run, spec, "sleep 3; echo 0 > verdict-local.0") != 0


def test_ctrl_c_that_ends_an_agent_before_it_has_recorded_anything_is_recorded(
    tmp_path: Path, job: Callable[..., JobSpec]
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while not (run.path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert supervised(run, job(run_dir=run.path, max_restarts=3), "touch ../started; exec sleep 15") == 130
    last = list(read_events(run))[-1]
    assert (last["kind"], last["why"]) == ("preempted", "stopped before an attempt had begun")
