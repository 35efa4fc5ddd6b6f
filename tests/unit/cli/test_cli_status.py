"""`status`: every phase from the run's own records, and what the exit code means."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dist_train.errors import UnavailableError
from dist_train.jobs import JobState
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.result import Result, write_result

KILLED = Failure(
    "rank",
    "signal",
    rank=3,
    local_rank=1,
    node_rank=1,
    host="n1",
    exit_code=137,
    message="killed by signal 9",
)


def test_a_pending_run(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1", nodes=2, procs_per_node=2)
    said = dist_train("status")
    assert said.code == 0
    for text in (
        "a-1",
        "pending",
        "events: no agent has begun yet",
        "2 node(s) x 2 processes",
        "dist-train cancel a-1",
    ):
        assert text in said.out
    assert said.err == ""


def test_a_running_run(make_run: Callable[..., Any], dist_train: Any, own: Any) -> None:
    made = make_run("a-1").began().trained(10, 0.9).trained(20, 0.25).trained(20, 0.3, kind="eval")
    made.restarted()
    checkpoint = made.run.checkpoints / "step-00000014"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    owner = own(made.run)
    said = dist_train("status", "a-1")
    assert said.code == 0
    assert f"lease: agent 0 is pid {owner.pid}" in said.out
    assert "attempt     1, 1 of 3 restarts used" in said.out
    assert "step 14, 0 s ago" in said.out
    assert "train       step 20, epoch 0, loss 0.25" in said.out
    assert "evaluation  step 20, epoch 0, loss 0.3" in said.out
    assert "dist-train logs a-1 --follow" in said.out


def test_a_failed_run_names_the_root_cause(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1").began().finished(137, why="killed")
    write_failure(made.run, KILLED)
    said = dist_train("status", "a-1")
    assert said.code == 0
    assert "rank 3 (node 1, local rank 1) on n1 (signal): killed by signal 9" in said.out
    assert "exit code   137" in said.out
    assert "dist-train logs a-1 --rank 3" in said.out
    assert "dist-train resume a-1" in said.out


def test_a_run_out_of_memory_is_resumed_with_more_where_the_launcher_can_give_it(
    make_run: Callable[..., Any], dist_train: Any, pretend: Any
) -> None:
    made = make_run("a-1").began().finished(137, why="killed")
    write_failure(made.run, replace(KILLED, cls="out_of_memory", memory_limit=3 << 30))
    assert json.loads(dist_train("status", "--json").out)["next"][-1] == "dist-train resume a-1"  # local
    made.run.job.write_text(made.run.job.read_text().replace('"launcher": "local"', '"launcher": "pretend"'))
    pretend.answer = JobState("failed", "queue", "", 137)
    assert json.loads(dist_train("status", "--json").out)["next"][-1] == "dist-train resume a-1 --mem 6G"
    pretend.answer = JobState("failed", "queue", "", 137, next=("dist-train resume /r/a-1 --mem 6G",))
    found = json.loads(dist_train("status", "--json").out)["next"]
    assert [command for command in found if " resume " in command] == ["dist-train resume /r/a-1 --mem 6G"]


def test_the_failure_of_an_earlier_start_is_not_shown_again(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    made = make_run("a-1").began().finished(137)
    write_failure(made.run, KILLED)
    made.submitted().began().finished(3, attempt=1)
    found = json.loads(dist_train("status", "--json").out)
    assert (found["phase"], found["exit_code"], found["failure"]) == ("failed", 3, None)
    assert found["restarts"] == 0


def test_json_is_one_object_with_a_version(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1").began().trained(5, float("nan")).finished(0)
    write_result(made.run, Result("a-1-id", "done", 0, 5, 1, 100, 1, 1, {"loss": 0.1, "accuracy": 0.97}))
    found = json.loads(dist_train("status", "a-1", "--json").out)
    assert found["schema_version"] == 1
    assert (found["phase"], found["source"], found["exit_code"]) == ("done", "events", 0)
    assert found["train"]["loss"] == "nan"
    assert found["result"]["metrics"]["accuracy"] == 0.97
    assert found["run_dir"] == str(made.run.path)
    assert found["next"] == ["dist-train logs a-1"]


@pytest.mark.parametrize(("end", "code"), [(0, 0), (3, 3), (77, 77), (137, 137)])
def test_exit_code_is_the_runs(make_run: Callable[..., Any], dist_train: Any, end: int, code: int) -> None:
    make_run("a-1").began().finished(end)
    assert dist_train("status").code == 0
    assert dist_train("status", "--exit-code").code == code
    assert dist_train("status", "--exit_code", "--json").code == code


def test_a_preempted_run_is_to_be_resumed(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1").began().preempted()
    said = dist_train("status", "--exit-code")
    assert said.code == 75
    assert "dist-train resume a-1" in said.out


def test_a_run_that_has_not_ended_has_no_exit_code(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1")
    said = dist_train("status", "--exit-code")
    assert said.code == 69
    assert "a-1 is pending: it has no exit code" in said.err


@pytest.mark.parametrize(
    "answer",
    [JobState("unknown", "squeue", "no answer"), UnavailableError("no answer"), OSError("no answer")],
)
def test_a_query_that_fails_is_unknown_and_never_failed(
    make_run: Callable[..., Any], dist_train: Any, pretend: Any, answer: Any
) -> None:
    run = make_run("a-1").began().run
    run.job.write_text(run.job.read_text().replace('"launcher": "local"', '"launcher": "pretend"'))
    pretend.answer = answer
    said = dist_train("status", "--json")
    found = json.loads(said.out)
    assert (said.code, found["phase"]) == (69, "unknown")
    assert "no answer" in found["detail"]
    assert dist_train("list").code == 0


def test_an_owner_that_has_ended_is_reported(make_run: Callable[..., Any], dist_train: Any, own: Any) -> None:
    made = make_run("a-1").began()
    owner = own(made.run)
    owner.kill()
    owner.wait()
    said = dist_train("status")
    assert "its owner is gone" in said.out
    assert "dist-train resume a-1" in said.out


def test_submitted_long_ago_and_never_begun_is_to_be_resumed(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    os.utime(make_run("a-1").run.job, (1, 1))
    assert json.loads(dist_train("status", "--json").out)["next"] == ["dist-train resume a-1"]


def test_nothing_coloured_is_printed(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1")
    for words in (["status"], ["list"], ["status", "--json"], ["env", "--explain"], ["--help"]):
        said = dist_train(*words)
        assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"\0\xff\n{torn\n"), "2 lines of events.jsonl cannot be read"),
        (lambda path: path.unlink(), "events.jsonl is not there"),
        (lambda path: (path.unlink(), path.mkdir()), "events.jsonl cannot be read: Is a directory"),
    ],
)
def test_events_that_cannot_be_read_are_named(
    make_run: Callable[..., Any], dist_train: Any, damage: Callable[[Path], Any], said: str
) -> None:
    made = make_run("a-1").began().finished(0)
    assert "cannot be read" not in dist_train("status", "a-1").out
    damage(made.run.events)
    shown = dist_train("status", "a-1")
    assert shown.code == (69 if "directory" in said else 0)
    assert said in shown.out
    assert said in json.loads(dist_train("status", "a-1", "--json").out)["events_problem"]


def test_a_script_that_ctrl_c_has_ended_is_stopped(make_run: Any, dist_train: Any) -> None:
    make_run("a-1").began().finished(130, why="stopped; the script does not take part in saving")
    assert json.loads(dist_train("status", "a-1", "--json").out)["phase"] == "stopped"


def test_watched_to_the_end_it_is_printed_at_each_change(
    make_run: Callable[..., Any], dist_train: Any, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dist_train.cli.live import status_watch

    monkeypatch.setattr(status_watch, "_EVERY_S", 0.05)
    made = make_run("a-1").began().trained(7)
    owner = own(made.run)

    def end() -> None:
        made.trained(9).finished(3)
        made.run.lease.unlink()
        owner.kill()

    threading.Timer(0.5, end).start()
    said = dist_train("status", "a-1", "--watch", "--exit-code")
    assert said.code == 3
    first, *_, last = said.out.split("\n\n")
    assert "phase       running" in first
    assert "step 7" in first
    assert "exit code   3" in last
    assert said.out.count("step 7,") == 1, "once, though it was looked at ten times"
    assert "\x1b" not in said.out
