"""`cancel`: asks, waits until the run has ended, and may be called again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dist_train.cli.verbs import cancel as verb
from dist_train.jobs import JobState


@pytest.mark.parametrize(
    ("code", "text"), [(0, "done, exit code 0"), (3, "failed, exit code 3"), (77, "cancelled")]
)
def test_an_ended_run_is_reported_as_ended(
    make_run: Callable[..., Any], dist_train: Any, code: int, text: str
) -> None:
    make_run("a-1").began().finished(code)
    said = dist_train("cancel")
    assert (said.code, said.out) == (0, f"a-1 has ended already: {text}\n")


def test_it_asks_and_waits_until_the_run_has_ended(
    make_run: Callable[..., Any], dist_train: Any, own: Any
) -> None:
    made = make_run("a-1").began()
    owner = own(made.run)

    def agent() -> None:
        deadline = time.monotonic() + 10
        while not (made.run.control / "cancel").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        made.finished(77)
        owner.kill()
        owner.wait()

    thread = threading.Thread(target=agent)
    thread.start()
    said = dist_train("cancel", "a-1")
    thread.join()
    assert said.code == 0
    assert said.out == "a-1 has ended: cancelled; `dist-train resume a-1` goes on with it\n"
    assert said.err == "[dist-train] cancelling a-1: it saves and stops (at most 75 s)\n"


def test_a_run_that_does_not_end_is_an_error(
    make_run: Callable[..., Any], dist_train: Any, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_MARGIN_S", 0.2)
    made = make_run("a-1", grace_s=0.2).began()
    own(made.run)
    said = dist_train("cancel")
    assert said.code == 69
    assert "a-1 has not ended within 0 s: running" in said.err
    assert "dist-train status a-1" in said.err


def test_a_job_in_a_queue_is_cancelled_there(
    make_run: Callable[..., Any], dist_train: Any, pretend: Any
) -> None:
    run = make_run("a-1").run
    run.job.write_text(run.job.read_text().replace('"launcher": "local"', '"launcher": "pretend"'))
    asked = []
    pretend.__class__.cancel = lambda self, handle, run_dir: (
        asked.append(handle.text),
        setattr(self, "answer", JobState("stopped", "queue", "", 77)),
    )
    assert dist_train("cancel").out.startswith("a-1 has ended: cancelled")
    assert asked == ["local:1"]


def test_what_an_ended_run_has_left_in_the_cluster_is_said(
    make_run: Callable[..., Any], dist_train: Any, pretend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("a-1").run
    run.job.write_text(run.job.read_text().replace('"launcher": "local"', '"launcher": "pretend"'))
    pretend.answer = JobState("done", "queue", "", 0)
    monkeypatch.setattr(
        pretend.__class__, "left_after_end", lambda self, handle, run_dir: f"its Job {handle.id} stays"
    )
    said = dist_train("cancel")
    assert (said.code, said.out) == (0, "a-1 has ended already: done, exit code 0; its Job 1 stays\n")


def test_a_submission_that_never_began_needs_no_cancel(make_run: Callable[..., Any], dist_train: Any) -> None:
    os.utime(make_run("a-1").run.job, (1, 1))
    said = dist_train("cancel")
    assert (said.code, said.out) == (0, "a-1 has ended already: no agent of it ever began\n")
