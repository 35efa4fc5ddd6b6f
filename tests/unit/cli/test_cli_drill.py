"""`dist-train drill`: its report on two trainings. (The trainings themselves: tests/multiprocess.)"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run import drill_run
from dist_train.cli.run.drill_run import EVERY_STEPS, STEPS, Kill, Trained
from dist_train.cli.verbs import drill
from dist_train.config import load_config
from dist_train.datasets import Digits
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.records import write_json_atomic
from dist_train.rundir.result import Result

GOOD = Result(
    "r", "done", 0, STEPS, 2, 2876, 3, 1, weights_hash="a" * 32, state_hash="b" * 32, metrics_hash="c" * 32
)
SEED = 5  # kills rank 2 of 3


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def trained(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Kill | None]]:
    """Trainings that ended so: `trained(killed=Result(...))`; returns the requested kills."""

    def pretend(
        killed: Result | None = GOOD,
        code: int = 0,
        attempts: int = 2,
        dead: Callable[[int], int] = lambda rank: rank,
        signal_number: int = signal.SIGKILL,
        resumed: bool = True,
        whole_restarts: int = 0,
    ) -> list[Kill | None]:
        asked: list[Kill | None] = []

        def train(folder: Path, ranks: int, kill: Kill | None = None) -> Trained:
            asked.append(kill)
            run = RunDir(folder)
            run.create()
            restarts = whole_restarts if kill is None else attempts - 1
            for attempt in range(restarts + 1):
                step = 10 * attempt if resumed and attempt else None
                append_event(run, "attempt_started", attempt, resume_step=step)
            for _ in range(restarts):
                rank = 0 if kill is None else dead(kill.rank)
                append_event(run, "restarted", 0, rank=rank)
                write_failure(run, Failure("rank", "signal", rank=rank, signal=signal_number))
            result = GOOD if kill is None else killed
            if result is not None:
                write_json_atomic(run.result, asdict(result))
            output = folder.with_suffix(".txt")
            output.write_text("the launch's last words\n")
            return Trained(run, 0 if kill is None else code, output, 1.5)

        monkeypatch.setattr(drill, "train", train)
        return asked

    return pretend


def test_equal_hashes_are_the_same_bits(dist_train: Any, trained: Any, temporary: Path) -> None:
    asked = trained()
    said = dist_train("drill", "--seed", "7")
    assert said.code == 0
    assert said.out.splitlines() == [
        f"undisturbed    1.5 s  weights {'a' * 16}  state {'b' * 16}  metrics {'c' * 16}",
        f"killed         1.5 s  weights {'a' * 16}  state {'b' * 16}  metrics {'c' * 16}",
        "             killed once, went on from the checkpoint of step 10",
        "same bits",
    ]
    assert asked == [None, drill.choose(7, 3)]
    assert list(temporary.iterdir()) == []


@pytest.mark.proves(
    "A drill without a kill, or with one differing hash, is no success",
)
@pytest.mark.parametrize("name", drill.HASHES)
def test_one_hash_that_differs_is_named_and_ends_with_1(dist_train: Any, trained: Any, name: str) -> None:
    trained(killed=replace(GOOD, **{name: "d" * 32}))
    said = dist_train("drill")
    assert said.code == 1
    assert "same bits\n" not in said.out.replace("NOT the same bits", "")
    before = getattr(GOOD, name)
    assert said.out.endswith(f"NOT the same bits:\n  {name}: {before} undisturbed, {'d' * 32} killed\n")


@pytest.mark.proves(
    "A drill without a kill, or with one differing hash, is no success",
)
@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ({"killed": None}, "a result is missing"),
        ({"killed": replace(GOOD, state_hash="")}, "a result is missing"),
        ({"attempts": 1}, "rank 2 was not killed"),
        ({"attempts": 3}, "or another one died as well"),
        ({"dead": lambda rank: rank - 1}, "rank 2 was not killed"),
        ({"signal_number": signal.SIGSEGV}, "rank 2 was not killed"),
        ({"resumed": False}, "went on from no checkpoint"),
        ({"whole_restarts": 1}, "the undisturbed run was restarted"),
    ],
    ids=["no result", "no hash", "nobody died", "two died", "another", "otherwise", "from the start", "both"],
)
def test_a_drill_that_proves_nothing_is_not_a_success(
    dist_train: Any, trained: Any, ended: dict[str, Any], why: str
) -> None:
    trained(**ended)
    assert drill.choose(SEED, 3).rank == 2
    said = dist_train("drill", "--seed", SEED)
    assert said.code == 1
    assert "no verdict: " in said.out
    assert why in said.out
    assert "same bits" not in said.out


@pytest.mark.parametrize(("code", "ours"), [(78, 78), (-9, 137)])
def test_a_failed_launch_shows_its_output_and_its_code(
    dist_train: Any, trained: Any, temporary: Path, code: int, ours: int
) -> None:
    trained(code=code)
    said = dist_train("drill")
    assert said.code == ours
    assert "the launch's last words" in said.err
    assert f"the run in killed ended with exit code {code}" in said.err
    assert list(temporary.iterdir()) == []


def test_the_killed_rank_follows_from_the_printed_seed(dist_train: Any, trained: Any) -> None:
    asked = trained()
    first = dist_train("drill", "--ranks", "5")
    words = first.err.splitlines()[0].partition("drill ")[2].partition(":")[0].split()
    again = dist_train("drill", *words)
    assert asked[1] == asked[3]
    assert again.err == first.err
    assert f"rank {asked[1].rank} is killed (kill -9) when step {asked[1].step} begins" in first.err


def test_any_rank_may_be_killed_at_any_step_after_the_first_checkpoint() -> None:
    kills = [drill.choose(seed, 4) for seed in range(400)]
    assert {kill.rank for kill in kills} == {0, 1, 2, 3}
    steps = {kill.step for kill in kills}
    assert min(steps) > EVERY_STEPS + 1  # when step 11 begins, the save of 10 may still be under way
    assert max(steps) < STEPS


def test_the_steps_are_those_of_two_epochs_of_the_example() -> None:
    from dist_train.cli.run.bundled_example import bundled_example

    config = load_config(bundled_example()).config
    assert 2 * -(-len(Digits("train")) // config.data.batch_size) == STEPS


def test_keep_leaves_both_runs(dist_train: Any, trained: Any, here: Path) -> None:
    trained()
    said = dist_train("drill", "--keep")
    assert sorted(path.name for path in (here / "runs" / "drill-1").iterdir() if path.is_dir()) == [
        "killed",
        "undisturbed",
    ]
    assert f"dist-train list --all-dirs {here / 'runs' / 'drill-1'}" in said.err


def test_where_nothing_can_be_kept_or_made_the_hint_is_the_drills_own(
    dist_train: Any, trained: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    (here / "runs").write_text("a file")
    said = dist_train("drill", "--keep")
    assert (said.code, "drop --keep" in said.err, "--run-dir" in said.err) == (78, True, False), said
    monkeypatch.setattr(tempfile, "tempdir", str(here / "nowhere"))
    said = dist_train("drill")
    assert (said.code, "set TMPDIR" in said.err) == (69, True), said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_drill_leaves_nothing(
    dist_train: Any, temporary: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    monkeypatch.setattr(drill, "train", lambda *args: os.kill(os.getpid(), number))
    if number == signal.SIGINT:
        assert dist_train("drill").code == code
    else:
        with pytest.raises(SystemExit) as left:
            dist_train("drill")
        assert left.value.code == code
    assert list(temporary.iterdir()) == []


class Launch:
    """A launch that ends after so many Ctrl-C."""

    def __init__(self, interrupts: int) -> None:
        self.interrupts = interrupts
        self.calls: list[str] = []

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")

    def wait(self, timeout: float | None = None) -> int:
        self.calls.append("wait")
        if timeout is not None and self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return 130


@pytest.mark.parametrize(
    ("interrupts", "calls"),
    [
        (0, ["terminate", "wait"]),
        (1, ["terminate", "wait", "wait"]),
        (2, ["terminate", "wait", "wait", "kill", "wait"]),
    ],
)
def test_a_second_ctrl_c_lets_the_launch_kill_its_ranks_before_the_folder_goes(
    interrupts: int, calls: list[str]
) -> None:
    launch = Launch(interrupts)
    drill_run.end(launch)
    assert launch.calls == calls
