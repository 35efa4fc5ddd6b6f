"""`events`: what happened to a run, at once or while it happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dist_train.cli.verbs import events
from dist_train.rundir.events import append_event


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_S", "_STATE_S", "_LAST_S"):
        monkeypatch.setattr(events, name, 0.05)


def test_a_line_per_event(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1").began().restarted().finished(0)
    said = dist_train("events", "a-1")
    lines = [line.split()[1:] for line in said.out.splitlines()]
    assert [line[0] for line in lines] == ["submitted", "attempt_started", "restarted", "finished"]
    assert "launcher=local" in lines[0]
    assert lines[1][1:] == ["attempt", "1", 'hosts=["here"]'], "attempts count from 1, as everywhere"
    assert lines[3][1:] == ["attempt", "1", "exit_code=0", "why=done"]


def test_json_is_one_object(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1").began()
    with made.run.events.open("a") as file:
        file.write('{"kind": "fin')  # torn by a kill
    found = json.loads(dist_train("events", "--json").out)
    assert [event["kind"] for event in found["events"]] == ["submitted", "attempt_started"]
    assert found["run_dir"] == str(made.run.path)


def test_followed_to_the_end_each_is_a_line_of_json(
    make_run: Callable[..., Any], dist_train: Any, own: Any
) -> None:
    made = make_run("a-1").began()
    owner = own(made.run)

    def go_on() -> None:
        append_event(made.run, "checkpoint_committed", 0, step=7)
        made.finished(0)
        made.run.lease.unlink()
        owner.kill()

    threading.Timer(0.5, go_on).start()
    said = dist_train("events", "a-1", "--follow", "--json")
    assert said.code == 0
    kinds = [json.loads(line)["kind"] for line in said.out.splitlines()]
    assert kinds == ["submitted", "attempt_started", "checkpoint_committed", "finished"]


def test_events_on_a_volume_of_the_cluster_are_not_here(
    make_run: Callable[..., Any], dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dist_train.jobs.launcher import load_launcher

    made = make_run("a-1")
    monkeypatch.setattr(type(load_launcher("local")), "run_dir_on_nodes", lambda self, spec: "/runs/a-1")
    said = dist_train("events", made.run.path)
    assert (said.code, said.out) == (69, "")
    assert "/runs/a-1" in said.err
