"""The sums of a run's time: every second in one part, whatever ended the attempts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from dist_train.rundir.times.account_time import SILENT_S, account_time
from dist_train.rundir.times.attempt_history import attempt_history
from dist_train.rundir.times.clock_file import CLOCK_PARTS, ClockReading
from dist_train.rundir.times.time_parts import RunTime
from dist_train.rundir.times.time_text import goodput_text, parts_text

Events = list[dict[str, Any]]
# All times are seconds after this one.
T0 = 1_700_000_000.0


def event(kind: str, at: float, attempt: int | None = None, **fields: Any) -> dict[str, Any]:
    time = datetime.fromtimestamp(T0 + at, UTC).isoformat().replace("+00:00", "Z")
    return {"kind": kind, "time": time, "attempt": attempt, **fields}


def started(attempt: int, agent: float, joins: float, at: float, **fields: Any) -> dict[str, Any]:
    return event("attempt_started", at, attempt, agent_started=T0 + agent, joins_since=T0 + joins, **fields)


def reading(
    began: float,
    seconds: Mapping[str, float],
    part: str = "stopping",
    *,
    resumed: int | None = -1,
    commits: tuple[tuple[int, Mapping[str, float]], ...] = (),
    known: tuple[str, ...] = ("communication",),
    alive: float | None = None,
) -> ClockReading:
    since = T0 + began + sum(seconds.values())
    full = {name: seconds.get(name, 0.0) for name in CLOCK_PARTS}
    ring = tuple((step, {name: sums.get(name, 0.0) for name in CLOCK_PARTS}) for step, sums in commits)
    seen = since if alive is None else T0 + alive
    return ClockReading(T0 + began, since, seen, part, full, resumed, frozenset(known), ring)


def account(
    events: Events, readings: Mapping[int, ClockReading], is_script: bool = False, now: float = 1000.0
) -> RunTime:
    history = attempt_history(events)
    assert history is not None
    found = account_time(history, readings, is_script, T0 + now)
    for attempt in found.attempts:
        assert sum(s or 0.0 for s in attempt.parts.values()) == pytest.approx(attempt.wall_s, abs=1e-3)
    return found


def nonzero(parts: Mapping[str, float | None]) -> dict[str, float | None]:
    return {part: None if s is None else round(s, 3) for part, s in parts.items() if s is None or s > 1e-3}


TRAINED = {
    "script": 2.0,
    "membership": 1.0,
    "set_up": 1.0,
    "data_wait": 3.0,
    "compute": 20.0,
    "save_stall": 2.0,
}


def test_an_undisturbed_run_on_a_cluster() -> None:
    events = [
        event("submitted", 0, launcher="slurm"),
        started(0, agent=60, joins=62, at=65),
        event("finished", 100, 0, exit_code=0),
    ]
    found = account(events, {0: reading(66, TRAINED)})
    assert nonzero(found.parts) == {
        "queue": 60.0,
        "start": 4.0,  # agent 2, ranks 1, after dt.init 1
        "import": 2.0,
        "membership": 4.0,
        "data_wait": 3.0,
        "compute": 20.0,
        "save_stall": 2.0,
        "stopping": 5.0,
    }
    assert found.goodput == pytest.approx(20 / 40)
    assert found.goodput_with_queue == pytest.approx(20 / 100)


def test_what_was_done_after_the_checkpoint_of_the_next_attempt_is_lost() -> None:
    saved = {"compute": 12.0, "data_wait": 2.0, "save_stall": 1.0}
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 1, 2),
        event("first_failure", 35, 0),
        event("restarted", 37, 0),
        started(1, 0, 1, 38, resume_step=7),
        event("finished", 60, 1, exit_code=0),
    ]
    readings = {
        0: reading(
            3, {"compute": 20.0, "data_wait": 3.0, "save_stall": 1.0}, "compute", commits=((7, saved),)
        ),
        1: reading(39, {"restore": 1.0, "compute": 15.0}, resumed=7),
    }
    found = account(events, readings)
    first = nonzero(found.attempts[0].parts)
    # 8 of compute and 1 of data wait were counted; 8 more passed in the same part until the failure was seen.
    assert first == {
        "start": 2.0,
        "membership": 1.0,
        "data_wait": 2.0,
        "compute": 12.0,
        "save_stall": 1.0,
        "lost": 17.0,
        "idle": 2.0,
    }
    assert found.attempts[1].parts["lost"] == 0.0
    assert found.useful_s == pytest.approx(27.0)


def test_an_older_checkpoint_makes_more_of_the_attempts_before_it_lost() -> None:
    commits = ((5, {"compute": 5.0}), (10, {"compute": 10.0}))
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 0, 0),
        event("restarted", 12, 0),
        started(1, 0, 0, 12, resume_step=10),
        event("restarted", 16, 1),
        started(2, 0, 0, 16, resume_step=5),
        event("finished", 30, 2, exit_code=0),
    ]
    readings = {
        0: reading(0, {"compute": 12.0}, commits=commits),
        1: reading(12, {"compute": 4.0}, resumed=10),
        2: reading(16, {"compute": 14.0}, resumed=5),
    }
    found = account(events, readings)
    assert [attempt.parts["lost"] for attempt in found.attempts] == [
        pytest.approx(7.0),
        pytest.approx(4.0),
        0.0,
    ]


def test_the_time_between_two_attempts_of_a_requeued_job_is_queue() -> None:
    events = [
        event("submitted", 0, launcher="slurm"),
        started(0, 10, 10, 10),
        event("preempted", 40, 0, step=9),
        started(1, 100, 100, 100, resume_step=9),
        event("finished", 120, 1, exit_code=0),
    ]
    commits = ((9, {"compute": 25.0}),)
    readings = {
        0: reading(10, {"compute": 25.0}, commits=commits),
        1: reading(100, {"compute": 20.0}, resumed=9),
    }
    found = account(events, readings)
    assert [attempt.parts["queue"] for attempt in found.attempts] == [10.0, pytest.approx(60.0)]
    assert found.parts["lost"] == 0.0


def test_the_time_between_a_stop_and_its_resume_belongs_to_no_attempt() -> None:
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 0, 1),
        event("preempted", 10, 0, step=1),
        event("submitted", 5000, launcher="local"),
        started(1, 5001, 5001, 5002, resume_step=1),
        event("finished", 5010, 1, exit_code=0),
    ]
    found = account(events, {}, now=9000)
    assert [attempt.wall_s for attempt in found.attempts] == [pytest.approx(10.0), pytest.approx(10.0)]


def test_an_attempt_whose_agent_was_killed_ends_with_the_last_sign_of_its_rank() -> None:
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 0, 1),
        event("restarted", 52, 0, end_seen=False),
        started(1, 50, 50, 52, resume_step=None),
        event("finished", 60, 1, exit_code=0),
    ]
    readings = {0: reading(1, {"compute": 9.0}, "compute", alive=21), 1: reading(52, {"compute": 8.0})}
    found = account(events, readings)
    assert found.attempts[0].wall_s == pytest.approx(21.0)
    assert found.attempts[0].parts["lost"] == pytest.approx(20.0)
    assert found.attempts[1].parts["idle"] == pytest.approx(29.0)


@pytest.mark.parametrize("launcher", ["slurm", "kubernetes"])
def test_a_submission_that_only_the_agent_has_noted_leaves_the_queue_unknown(launcher: str) -> None:
    events = [
        event("submitted", 3, launcher=launcher, noted_by="agent"),
        started(0, 0, 3, 4),
        event("finished", 10, 0, exit_code=0),
    ]
    found = account(events, {0: reading(4, {"compute": 6.0})})
    assert found.parts["queue"] is None
    assert found.goodput_with_queue is None
    assert found.goodput == pytest.approx(0.6)


def test_a_running_attempt_counts_until_now_while_it_is_alive() -> None:
    events = [event("submitted", 0, launcher="local"), started(0, 0, 0, 1)]
    readings = {0: reading(1, {"compute": 5.0}, "data_wait", alive=20)}
    assert account(events, readings, now=21).parts["data_wait"] == pytest.approx(15.0)
    assert account(events, readings, now=21).parts["lost"] == 0.0
    silent = account(events, readings, now=21 + SILENT_S)
    assert silent.wall_s == pytest.approx(20.0)


def test_a_plain_script_has_start_import_and_compute_and_the_rest_is_not_known() -> None:
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 1, 1),
        event("finished", 20, 0, exit_code=0),
    ]
    found = account(events, {0: reading(1, {"script": 2.0, "body": 15.0}, known=())}, is_script=True)
    assert nonzero(found.parts) == {
        "start": 1.0,
        "import": 2.0,
        "restore": None,
        "data_wait": None,
        "compute": 15.0,
        "communication": None,
        "evaluation": None,
        "save_stall": None,
        "stopping": 2.0,
    }
    text = parts_text(found.to_record())
    assert text.endswith("not known: restore, data wait, communication (exposed), evaluation, save stall")


def test_what_a_plain_script_lost_is_not_known() -> None:
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 0, 1),
        event("restarted", 10, 0),
        started(1, 0, 0, 10),
        event("finished", 20, 1, exit_code=0),
    ]
    readings = {
        number: reading(began, {"body": 8.0}, resumed=None, known=()) for number, began in ((0, 1), (1, 10))
    }
    found = account(events, readings, is_script=True)
    assert found.attempts[0].parts["lost"] is None
    assert found.attempts[0].parts["compute"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("end", "part"),
    [
        (event("preempted", 20, 0, step=None), "stopping"),
        (event("finished", 20, 0, exit_code=77), "stopping"),
        (event("finished", 20, 0, exit_code=143, stopped=True), "stopping"),
        (event("finished", 20, 0, exit_code=1), "idle"),
    ],
)
def test_a_script_that_was_interrupted_by_a_stop_was_stopping(end: dict[str, Any], part: str) -> None:
    events = [event("submitted", 0, launcher="local"), started(0, 0, 0, 0), end]
    found = account(events, {0: reading(0, {"body": 15.0}, "idle", known=())}, is_script=True)
    assert found.parts[part] == pytest.approx(5.0)


def test_events_of_an_older_version_tell_no_times() -> None:
    assert attempt_history([event("submitted", 0), event("attempt_started", 1, 0)]) is None


def test_the_text_of_a_run() -> None:
    events = [
        event("submitted", 0, launcher="slurm"),
        started(0, 60, 60, 60),
        event("finished", 100, 0, exit_code=0),
    ]
    record = account(events, {0: reading(60, {"compute": 30.0, "data_wait": 10.0})}).to_record()
    assert goodput_text(record) == "75.0 % (30.0 % with the queue) of 1:40 in 1 attempt"
    assert parts_text(record) == "queue 60.0 %, compute 30.0 %, data wait 10.0 %"


def test_the_text_of_a_run_without_a_queue_names_none() -> None:
    events = [
        event("submitted", 0, launcher="local"),
        started(0, 0, 0, 0),
        event("finished", 40, 0, exit_code=0),
    ]
    record = account(events, {0: reading(0, {"compute": 30.0, "data_wait": 10.0})}).to_record()
    assert goodput_text(record) == "75.0 % of 0:40 in 1 attempt"
    record["total"]["queue"] = None
    assert goodput_text(record) == "75.0 % (queue not known) of 0:40 in 1 attempt"
