"""The termination message of a pod: all that a launcher far away will ever read of the run directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_train import env
from dist_train.agent import settings
from dist_train.agent.settings import Settings
from dist_train.agent.termination import LIMIT_BYTES, End, message, of_error, record_of, tell, why_preempted
from dist_train.errors import ConfigError, Preempted
from dist_train.rundir import RunDir
from dist_train.rundir.failure import Failure
from dist_train.rundir.records import write_json_atomic

FAILURE = Failure(
    source="rank", cls="exception", rank=3, node_rank=1, exit_code=41, message="ValueError: x", attempt=1
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def environ(run: RunDir) -> dict[str, str]:
    return {
        env.RUN_DIR: str(run.path),
        env.RUN_ID: "digits-1",
        env.LAUNCHER: "kubernetes",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "2",
        env.RDZV: "tcp://train-0.train:29400",
        "JOB_COMPLETION_INDEX": "1",
        env.TERMINATION_LOG: str(run.path.parent / "message"),
    }


def told(environ: dict[str, str]) -> Settings:
    return settings.read(["config", "x"], environ)


def written(environ: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(environ[env.TERMINATION_LOG]).read_bytes())
    return found


def commit(run: RunDir, step: int) -> None:
    (run.checkpoints / f"step-{step:08}").mkdir()
    (run.checkpoints / f"step-{step:08}" / "manifest.json").touch()


def test_it_tells_code_cause_and_step(run: RunDir, environ: dict[str, str]) -> None:
    commit(run, 120)
    tell(End(41, "not restarted", FAILURE, attempt=1), told(environ), environ)
    assert written(environ) == {
        "schema_version": 1,
        "run_id": "digits-1",
        "node": 1,
        "attempt": 1,
        "code": 41,
        "why": "not restarted",
        "step": 120,
        "failure": json.loads(json.dumps(FAILURE.to_record())),
        "result": None,
    }


@pytest.mark.parametrize(("code", "told_too"), [(0, True), (41, False)])
def test_a_good_end_tells_the_result(run: RunDir, environ: dict[str, str], code: int, told_too: bool) -> None:
    facts = {"steps": 40, "weights_hash": "ab12", "metrics": {"accuracy": 0.97}}
    write_json_atomic(run.result, facts)
    tell(End(code, "done"), told(environ), environ)
    result = written(environ)["result"]
    assert result is not None if told_too else result is None
    assert not told_too or {name: result[name] for name in facts} == facts


def test_a_later_message_takes_the_place_of_a_longer_one(environ: dict[str, str]) -> None:
    for end in (End(41, "x" * 300, FAILURE), End(0, "done")):
        tell(end, told(environ), environ)
    assert (written(environ)["code"], written(environ)["failure"]) == (0, None)


def test_settings_that_are_wrong_are_told_too(environ: dict[str, str]) -> None:
    error = ConfigError("DIST_TRAIN_RDZV='x' is wrong", cause="by hand", mend="launch it")
    tell(of_error(78, error, None), None, environ)
    found = written(environ)
    assert (found["code"], found["node"], found["step"]) == (78, 1, None)
    assert found["why"] == "DIST_TRAIN_RDZV='x' is wrong"
    assert found["failure"]["message"] == str(error), "cause and mend stand there"


def test_a_stop_before_the_beginning_is_no_failure(environ: dict[str, str]) -> None:
    assert of_error(75, Preempted("stopped"), told(environ)).failure is None


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_other_launchers_read_no_such_file(environ: dict[str, str], launcher: str) -> None:
    tell(End(0, "done"), None, {**environ, env.LAUNCHER: launcher})
    assert not Path(environ[env.TERMINATION_LOG]).exists()


def test_a_file_that_cannot_be_written_is_only_said(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tell(End(0, "done"), told(environ), {**environ, env.TERMINATION_LOG: "/nowhere/message"})
    assert "the termination message could not be written" in capsys.readouterr().err


def test_the_end_of_a_long_traceback_and_the_beginning_of_a_long_message_are_kept() -> None:
    long = replace(
        FAILURE,
        traceback="\n".join(f"  File {i}" for i in range(2000)) + "\nValueError: the end",
        message="the beginning " + "m" * 20000,
        log_tail=tuple(f"line {i} " + "é" * 400 for i in range(15)),
        victims=tuple(range(1000)),
    )
    payload = message(record_of(End(41, "why", long), None, {}))
    assert len(payload) <= LIMIT_BYTES
    found = json.loads(payload)["failure"]
    assert found["traceback"].endswith("ValueError: the end")
    assert len(found["traceback"]) > 800
    assert found["message"].startswith("the beginning")
    assert (found["rank"], found["exit_code"], found["victims"][:2]) == (3, 41, [0, 1])


def test_without_a_traceback_the_last_words_are_kept() -> None:
    long = replace(FAILURE, log_tail=tuple(f"line {i} " + "x" * 290 for i in range(15)))
    found = json.loads(message(record_of(End(41, "why", long), None, {})))["failure"]
    assert len(found["log_tail"]) >= 5
    assert found["log_tail"][-1].startswith("line 14")


TEXTS = st.text(st.characters(), max_size=3000)


@given(TEXTS, TEXTS, st.none() | TEXTS, st.lists(TEXTS, max_size=15), st.integers(0, 4000))
def test_whatever_is_said_fits_and_is_json(
    why: str, text: str, traceback: str | None, tail: list[str], victims: int
) -> None:
    failure = replace(
        FAILURE, message=text, traceback=traceback, log_tail=tuple(tail), victims=tuple(range(victims))
    )
    payload = message(record_of(End(41, why, failure), None, {}))
    assert len(payload) <= LIMIT_BYTES
    assert json.loads(payload)["code"] == 41


def test_a_preempted_ranks_own_words_say_what_was_saved(run: RunDir, environ: dict[str, str]) -> None:
    folder = run.attempts / "1"
    folder.mkdir()
    words = "stopped at step 57 as asked; a save was not possible, last good checkpoint: step 50"
    (folder / "error-rank-2.json").write_text(json.dumps({"exception": "Preempted", "text": words}))
    assert why_preempted(told(environ), 1, "saved and stopped") == words
    assert why_preempted(told(environ), 0, "saved and stopped") == "saved and stopped"


@pytest.mark.parametrize(("code", "leaves_with", "exit_code"), [(41, None, 41), (77, 1, 1), (41, 76, 76)])
def test_the_process_leaves_with_what_kubernetes_is_told(
    code: int, leaves_with: int | None, exit_code: int
) -> None:
    assert End(code, "why", leaves_with=leaves_with).exit_code == exit_code


def test_what_cannot_be_cut_is_left_out_and_code_and_reason_stay() -> None:
    odd = replace(FAILURE, exception="E" * 5000)
    payload = message(record_of(End(41, "why", odd), None, {}))
    found = json.loads(payload)
    assert (found["code"], found["why"], found["failure"]) == (41, "why", None)
    assert len(payload) <= LIMIT_BYTES < 4096
