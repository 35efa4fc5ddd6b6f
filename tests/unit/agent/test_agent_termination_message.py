"""The termination message of a pod: the only part of the run directory that a remote launcher reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.platform.termination_message import (
    LIMIT_BYTES,
    encode_within_limit,
    exit_record,
    preemption_reason,
)
from dist_train.agent.settings import Settings
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


def settings_of(environ: dict[str, str]) -> Settings:
    return read_settings(["config", "x"], environ)


def report(end: AgentExit, settings: Settings | None, environ: dict[str, str]) -> None:
    platform_of(environ[env.LAUNCHER]).report_exit(end, settings, environ)


def written(environ: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(environ[env.TERMINATION_LOG]).read_bytes())
    return found


def commit(run: RunDir, step: int) -> None:
    (run.checkpoints / f"step-{step:08}").mkdir()
    (run.checkpoints / f"step-{step:08}" / "manifest.json").touch()


def test_it_holds_code_cause_and_step(run: RunDir, environ: dict[str, str]) -> None:
    commit(run, 120)
    report(AgentExit(41, "not restarted", FAILURE, attempt=1), settings_of(environ), environ)
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


@pytest.mark.parametrize(("code", "included"), [(0, True), (41, False)])
def test_a_successful_end_includes_the_result(
    run: RunDir, environ: dict[str, str], code: int, included: bool
) -> None:
    facts = {"steps": 40, "weights_hash": "ab12", "metrics": {"accuracy": 0.97}}
    write_json_atomic(run.result, facts)
    report(AgentExit(code, "done"), settings_of(environ), environ)
    result = written(environ)["result"]
    assert result is not None if included else result is None
    assert not included or {name: result[name] for name in facts} == facts


def test_a_later_message_replaces_a_longer_one(environ: dict[str, str]) -> None:
    for end in (AgentExit(41, "x" * 300, FAILURE), AgentExit(0, "done")):
        report(end, settings_of(environ), environ)
    assert (written(environ)["code"], written(environ)["failure"]) == (0, None)


def test_wrong_settings_are_reported_too(environ: dict[str, str]) -> None:
    error = ConfigError("DIST_TRAIN_RDZV='x' is wrong", cause="by hand", hint="launch it")
    report(AgentExit.from_error(78, error, None), None, environ)
    found = written(environ)
    assert (found["code"], found["node"], found["step"]) == (78, 1, None)
    assert found["why"] == "DIST_TRAIN_RDZV='x' is wrong"
    assert found["failure"]["message"] == str(error), "cause and hint are part of it"


def test_a_stop_before_the_first_attempt_is_no_failure(environ: dict[str, str]) -> None:
    assert AgentExit.from_error(75, Preempted("stopped"), settings_of(environ)).failure is None


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_other_platforms_write_no_such_file(environ: dict[str, str], launcher: str) -> None:
    report(AgentExit(0, "done"), None, {**environ, env.LAUNCHER: launcher})
    assert not Path(environ[env.TERMINATION_LOG]).exists()


def test_a_file_that_cannot_be_written_is_only_printed(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    report(AgentExit(0, "done"), settings_of(environ), {**environ, env.TERMINATION_LOG: "/nowhere/message"})
    assert "the termination message could not be written" in capsys.readouterr().err


def test_the_end_of_a_long_traceback_and_the_beginning_of_a_long_message_are_kept() -> None:
    long = replace(
        FAILURE,
        traceback="\n".join(f"  File {i}" for i in range(2000)) + "\nValueError: the end",
        message="the beginning " + "m" * 20000,
        log_tail=tuple(f"line {i} " + "é" * 400 for i in range(15)),
        secondary_failures=tuple(range(1000)),
    )
    payload = encode_within_limit(exit_record(AgentExit(41, "why", long), None, {}))
    assert len(payload) <= LIMIT_BYTES
    found = json.loads(payload)["failure"]
    assert found["traceback"].endswith("ValueError: the end")
    assert len(found["traceback"]) > 800
    assert found["message"].startswith("the beginning")
    assert (found["rank"], found["exit_code"], found["victims"][:2]) == (3, 41, [0, 1])


def test_without_a_traceback_the_last_lines_are_kept() -> None:
    long = replace(FAILURE, log_tail=tuple(f"line {i} " + "x" * 290 for i in range(15)))
    found = json.loads(encode_within_limit(exit_record(AgentExit(41, "why", long), None, {})))["failure"]
    assert len(found["log_tail"]) >= 5
    assert found["log_tail"][-1].startswith("line 14")


TEXTS = st.text(st.characters(), max_size=3000)


@given(TEXTS, TEXTS, st.none() | TEXTS, st.lists(TEXTS, max_size=15), st.integers(0, 4000))
def test_any_text_fits_and_is_json(
    why: str, text: str, traceback: str | None, tail: list[str], secondary_failures: int
) -> None:
    failure = replace(
        FAILURE,
        message=text,
        traceback=traceback,
        log_tail=tuple(tail),
        secondary_failures=tuple(range(secondary_failures)),
    )
    payload = encode_within_limit(exit_record(AgentExit(41, why, failure), None, {}))
    assert len(payload) <= LIMIT_BYTES
    assert json.loads(payload)["code"] == 41


def test_the_reason_of_a_preempted_rank_says_what_was_saved(run: RunDir, environ: dict[str, str]) -> None:
    folder = run.attempts / "1"
    folder.mkdir()
    text = "stopped at step 57 as asked; a save was not possible, last good checkpoint: step 50"
    (folder / "error-rank-2.json").write_text(json.dumps({"exception": "Preempted", "text": text}))
    assert preemption_reason(settings_of(environ), 1, "saved and stopped") == text
    assert preemption_reason(settings_of(environ), 0, "saved and stopped") == "saved and stopped"


@pytest.mark.parametrize(("code", "process_code", "exit_code"), [(41, None, 41), (77, 1, 1), (41, 76, 76)])
def test_the_process_exits_with_the_code_for_kubernetes(
    code: int, process_code: int | None, exit_code: int
) -> None:
    assert AgentExit(code, "why", process_code=process_code).exit_code == exit_code


def test_what_cannot_be_shortened_is_dropped_and_code_and_reason_stay() -> None:
    odd = replace(FAILURE, exception="E" * 5000)
    payload = encode_within_limit(exit_record(AgentExit(41, "why", odd), None, {}))
    found = json.loads(payload)
    assert (found["code"], found["why"], found["failure"]) == (41, "why", None)
    assert len(payload) <= LIMIT_BYTES < 4096
