"""The panel of a run, from the run's own records, at any width."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dist_train.cli.live import run_snapshot
from dist_train.cli.live.panel import Panel
from dist_train.cli.live.run_snapshot import RepeatedLines, RunSnapshot, RunWatcher
from dist_train.cli.live.screen import cells
from dist_train.rundir import events, metric_text
from dist_train.rundir.events import append_event
from dist_train.rundir.stop_file import Slot, StopFile

MakeRun = Callable[..., Any]

TRAIN = {
    "kind": "train",
    "step": 1234,
    "total_steps": 23000,
    "epoch": 2,
    "epochs": 20,
    "samples": 78976,
    "loss": 0.312,
    "lr": 0.003,
    "metrics": {"accuracy": 0.9062},
    "samples_per_s": 5120.4,
    "data_wait": 0.03,
    "step_s": 0.123,
    "data_s": 0.004,
    "compute_s": 0.119,
    "eta_s": 750.0,
    "step_s_mean": 0.12,
    "data_s_mean": 0.006,
    "compute_s_mean": 0.114,
    "memory_bytes": 2**29,
    "memory_rank": 1,
    "slowest_rank": 2,
    "slowest_s": 0.14,
    "others_s": 0.1,
}
SNAPSHOT = RunSnapshot(
    name="digits-1",
    ranks=4,
    began_s=0.0,
    at_s=90.0,
    phase="running",
    attempt=1,
    restarts=1,
    train=TRAIN,
    step=1236,
    eta_s=750.0,
    evaluation={**TRAIN, "kind": "eval", "loss": 0.2},
    checkpoint_step=1200,
    checkpoint_age_s=10.0,
)


def drawn(seen: RunSnapshot, columns: int, now: float = 92.0, **how: Any) -> list[str]:
    """The panel's lines without their colours."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in Panel(**how).lines(seen, columns, now)]


def test_eighty_columns() -> None:
    assert drawn(SNAPSHOT, 80) == [
        "digits-1  epoch 3/20  step 1236/23000  ━─────────  5 %  ETA 12:28  elapsed 1:32",
        "loss 0.3120  accuracy 0.9062  evaluation loss 0.2000, accuracy 0.9062",
        "Time 0.123 (0.120)  Data 0.004 (0.006)  Compute 0.119 (0.114)  data wait 3 %",
        "lr 0.003  5120 samples/s  memory 512.0 MiB (rank 1)",
        "checkpoint step 1200, 12 s ago  slowest rank 2 (0.140 s, others 0.100)",
        "attempt 2, restarts 1",
    ]


def test_two_hundred_columns() -> None:
    head, figures, state = drawn(SNAPSHOT, 200)
    assert head.endswith(f"{'━' * 3}{'─' * 57}  5 %  ETA 12:28  elapsed 1:32")
    assert figures.endswith(
        "evaluation loss 0.2000, accuracy 0.9062  "
        + "  ".join([*metric_text.columns(TRAIN), "data wait 3 %"])
    )
    assert state.startswith("lr 0.003  5120 samples/s  memory 512.0 MiB (rank 1)  checkpoint step 1200")


@pytest.mark.parametrize("columns", [20, 33, 50, 79, 80, 81, 120, 200, 400])
def test_no_line_is_as_wide_as_the_terminal_and_nothing_is_lost(columns: int) -> None:
    lines = drawn(SNAPSHOT, columns)
    assert max(cells(line) for line in lines) < max(columns, 21)
    if columns >= 50:
        text = " ".join(lines)
        for part in (
            "digits-1",
            "step 1236/23000",
            "ETA 12:28",
            *metric_text.columns(TRAIN),
            "slowest rank 2",
        ):
            assert part in text


def test_before_the_first_record_ranks_are_starting() -> None:
    begun = replace(SNAPSHOT, phase="starting", train=None, evaluation=None, step=None, eta_s=None)
    begun = replace(begun, checkpoint_step=None, restarts=0)
    assert drawn(begun, 80) == ["digits-1  starting  elapsed 1:32"]


def test_a_terminal_without_the_characters_gets_a_plain_bar_and_colours_can_be_left_out() -> None:
    assert "#-----" in drawn(SNAPSHOT, 80, encoding="ascii")[0]
    assert "\x1b" in "".join(Panel().lines(SNAPSHOT, 80, 92.0))
    assert "\x1b" not in "".join(Panel(colour=False).lines(SNAPSHOT, 80, 92.0))


def test_a_users_script_shows_what_it_logs() -> None:
    mine = replace(SNAPSHOT, train={"kind": "train", "step": 7, "loss": 2.5, "f1": 0.25}, step=7, eta_s=None)
    mine = replace(mine, evaluation=None, checkpoint_step=None, restarts=0)
    assert drawn(mine, 80) == ["digits-1  step 7  elapsed 1:32", "loss 2.5000  f1 0.2500  no checkpoint"]


def watched(made: Any) -> RunWatcher:
    return RunWatcher(made.run, made.spec)


def test_a_snapshot_follows_the_records_of_a_run(make_run: MakeRun) -> None:
    made = make_run("digits-1", nodes=1, procs_per_node=2)
    watcher = watched(made)
    first = watcher.take()
    assert (first.name, first.ranks, first.phase, first.step) == ("digits-1", 2, "starting", None)
    made.began().trained(10, total_steps=100, eta_s=50.0).trained(10, kind="eval", loss=0.25)
    second = watcher.take()
    assert (second.phase, second.step, second.attempt, second.restarts) == ("running", 10, 0, 0)
    assert second.evaluation is not None
    assert second.evaluation["loss"] == 0.25
    assert second.eta_s == pytest.approx(50.0, abs=1.0)
    made.restarted().began()
    again = watcher.take()
    assert (again.phase, again.attempt, again.restarts) == ("starting", 1, 1)
    assert again.eta_s is None, "the pace of an attempt that has ended says nothing"


def test_the_stop_file_is_ahead_of_the_records_and_shows_a_stop(make_run: MakeRun) -> None:
    made = make_run("digits-1", procs_per_node=2).began().trained(10)
    stop_file = StopFile.create(made.run.control / "board-node-0", 2)
    try:
        stop_file.write(1, Slot(4711, 17, 3))
        assert watched(made).take().step == 17
        stop_file.stop = 1
        assert watched(made).take().phase == "saving and stopping"
    finally:
        stop_file.close()


def test_stop_files_of_the_previous_launch_are_ignored(make_run: MakeRun) -> None:
    """After Ctrl-C the old stop file is set, and may have another number of ranks than the resumed run."""
    made = make_run("digits-1", procs_per_node=2).began().trained(10)
    stop_file = StopFile.create(made.run.control / "board-node-0", 1)
    try:
        stop_file.write(0, Slot(4711, 17, 3))
        stop_file.stop = 1
        made.preempted().submitted()
        seen = watched(made).take()
        assert (seen.phase, seen.step, seen.eta_s) == ("starting", 10, None)
    finally:
        stop_file.close()


def test_a_script_that_logs_nothing_runs_from_its_first_moment(make_run: MakeRun) -> None:
    made = make_run("mine-1")
    assert watched(made).take().phase == "starting"
    assert watched(made.began()).take().phase == "running"


def test_a_snapshot_reads_no_event_twice(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of weeks has a hundred thousand events: the panel reads what is new, and no commit at all."""
    made = make_run("digits-1").began()
    read: list[bytes] = []
    parse = events.parse_line
    monkeypatch.setattr(events, "parse_line", lambda line: (read.append(line), parse(line))[1])
    watcher = watched(made)
    watcher.take()
    assert len(read) == 2
    for step in (10, 20):
        append_event(made.run, "checkpoint_committed", 0, step=step)
    watcher.take()
    assert len(read) == 2
    made.restarted()
    assert watcher.take().restarts == 1
    assert len(read) == 3


def test_the_newest_checkpoint_and_its_age(make_run: MakeRun) -> None:
    made = make_run("digits-1").began().trained(10)
    folder = made.run.checkpoints / "step-00000010"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    seen = watched(made).take()
    assert seen.checkpoint_step == 10
    assert seen.checkpoint_age_s == pytest.approx(0.0, abs=5.0)


def test_a_script_that_logs_its_length_gets_an_eta(make_run: MakeRun) -> None:
    made = make_run("mine-1").began()
    for step in (10, 20):
        when = f"2999-01-01T00:00:{step}Z"
        made.trained(step, total_steps=100, time=when)
    assert watched(made).take().eta_s == pytest.approx(80.0, abs=1.0)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_thread_reports_unreadable_records_and_goes_on(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_snapshot, "_EVERY_S", 0.05)
    made = make_run("digits-1").began().trained(10)
    watcher = watched(made)
    good = made.run.metrics.read_bytes()
    made.run.metrics.unlink()
    made.run.metrics.mkdir()  # every look fails
    with watcher:
        until(lambda: "its records cannot be read: IsADirectoryError" in watcher.snapshot.phase)
        assert watcher.snapshot.step is None
        made.run.metrics.rmdir()
        made.run.metrics.write_bytes(good)
        until(lambda: (watcher.snapshot.phase, watcher.snapshot.step) == ("running", 10))


def test_only_a_line_that_repeats_a_record_is_progress(make_run: MakeRun) -> None:
    made = make_run("digits-1").began().trained(10, epochs=2, total_steps=20, samples=80)
    line = "epoch 1/2  step 10/20  loss 0.5000  lr 0.1"
    repeats = RepeatedLines(made.run)
    assert repeats.has(line)
    assert repeats.has(f"[rank 0 here] {line}")
    assert not repeats.has(f"[rank 1 here] {line}")
    assert not repeats.has(line.replace("step 10", "step 11"))
    assert not repeats.has("loading data")
    made.trained(11, epochs=2, total_steps=20, samples=88)
    assert repeats.has(line.replace("step 10", "step 11")), "the record has come meanwhile"
