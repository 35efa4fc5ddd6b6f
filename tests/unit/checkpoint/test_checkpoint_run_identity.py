"""Whose checkpoints a directory holds: another run's are refused, a second live writer is refused."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Training, saved_run
from checkpoint_places import Place

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.errors import CheckpointError, CheckpointWriteError, ConfigError, NotFoundError


def run_of(run_id: str, location: str | Path, attempt: int = 0, **options: Any) -> CheckpointManager:
    """A manager as in a rank of that run."""
    return CheckpointManager(location, run_id=run_id, attempt=attempt, **options)


def optimizer_with(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def test_a_second_run_in_the_same_directory_is_refused(place: Place) -> None:
    first = Training(optimizer_with(0.1))
    first.train()
    run_of("a-1", place.location).save(1, first.state)
    second = Training(optimizer_with(0.5))
    other = run_of("b-2", place.location)
    for act in (lambda: other.load_latest(second.state), lambda: other.save(2, second.state)):
        with pytest.raises(CheckpointError, match=r"those of run a-1, to step 1; this is run b-2") as caught:
            act()
        assert "dist-train resume" in str(caught.value)
        assert f'init_from="{place.storage.location}"' in str(caught.value)
    assert second.optimizer.param_groups[0]["lr"] == 0.5
    assert run_of("a-1", place.location, attempt=1).load_latest(first.state) is not None


def test_resumes_and_restarts_of_the_same_run_are_not(place: Place) -> None:
    training = Training()
    for attempt in range(3):
        manage = run_of("a-1", place.location, attempt)
        restored = manage.load_latest(training.state)
        assert (restored.step if restored else 0) == attempt
        training.train()
        manage.save(attempt + 1, training.state)


def test_a_directory_whose_run_saved_nothing_is_free(place: Place) -> None:
    run_of("a-1", place.location).begin_attempt()
    training = Training()
    second = run_of("b-2", place.location)
    assert second.load_latest(training.state) is None
    second.save(1, training.state)
    # The first one, were it still there, commits nothing more.
    with pytest.raises(CheckpointError, match="run b-2"):
        run_of("a-1", place.location, attempt=1).save(2, training.state)


def test_without_a_run_id_the_directory_is_the_run(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    for step in (1, 2):
        manage = CheckpointManager(place.location)
        assert (manage.load_latest(training.state) is None) == (step == 1)
        training.train()
        manage.save(step, training.state)
    launched = run_of("a-1", place.location)
    assert launched.load_latest(training.state) is not None
    assert "have no run id: run a-1 goes on with them" in caplog.text
    training.train()
    launched.save(3, training.state)
    script = CheckpointManager(place.location)
    assert script.load_latest(training.state) is not None
    assert "is of run a-1, and this script has no run id" in caplog.text
    with pytest.raises(CheckpointError, match="those of run a-1, to step 3; this is a script without"):
        script.save(4, training.state)
    assert run_of("a-1", place.location, 1).load_latest(training.state) is not None


def test_a_step_that_is_named_can_be_read_whatever_run_saved_it(place: Place) -> None:
    saved_run(place.location, 2)
    training = Training(seed=5)
    assert run_of("other-1", place.location).load(2, training.state).step == 2
    with pytest.raises(CheckpointError, match="those of run run"):
        run_of("other-1", place.location).save(3, training.state)


@pytest.mark.parametrize("named", ["directory", "checkpoint"])
def test_init_from_begins_with_the_weights_alone(tmp_path: Path, named: str) -> None:
    saved_run(tmp_path / "a", 3)
    source = tmp_path / "a" if named == "directory" else tmp_path / "a" / "step-00000003"
    training = Training(optimizer_with(0.5), seed=5)
    manage = run_of("b-2", tmp_path / "b")
    assert manage.load_latest(training.state, init_from=source, fresh_optimizer=True) is None
    trained = Training()
    run_of("run", tmp_path / "a", attempt=1).load(3, trained.state)
    assert training.weights() == trained.weights()
    assert torch.equal(training.model.seen, trained.model.seen), "buffers outside any state_dict too"
    assert training.optimizer.param_groups[0]["lr"] == 0.5
    assert not training.optimizer.state
    assert training.loader.at == 0
    training.train()
    manage.save(1, training.state)
    weights = training.weights()
    training.train()
    # Its own checkpoint is taken from then on, whatever the script names.
    restored = manage.load_latest(training.state, init_from=source, fresh_optimizer=True)
    assert restored is not None
    assert (restored.step, training.weights()) == (1, weights)


def test_init_from_with_the_optimizer_goes_on_at_its_step(tmp_path: Path) -> None:
    hashes = saved_run(tmp_path / "a", 3)
    training = Training(seed=5)
    manage = run_of("b-2", tmp_path / "b")
    restored = manage.load_latest(training.state, init_from=tmp_path / "a", fresh_optimizer=False)
    assert restored is not None
    assert (restored.step, training.weights(), training.loader.at) == (3, hashes[3], 12)
    training.train()
    manage.save(4, training.state)
    assert manage.steps() == [4]
    assert sorted(os.listdir(tmp_path / "a"))[-1] == "step-00000003", "the source is not touched"


def test_init_from_says_what_becomes_of_the_optimizer_and_names_something(tmp_path: Path) -> None:
    manage, training = run_of("b-2", tmp_path / "b"), Training()
    with pytest.raises(ConfigError, match="does not say what becomes of the optimizer"):
        manage.load_latest(training.state, init_from=tmp_path / "a")
    with pytest.raises(ConfigError, match="without init_from"):
        manage.load_latest(training.state, fresh_optimizer=True)
    with pytest.raises(NotFoundError, match="no checkpoint in"):
        manage.load_latest(training.state, init_from=tmp_path / "a", fresh_optimizer=True)
    saved_run(tmp_path / "a", 1)
    with pytest.raises(CheckpointError, match="has no entry 'net'"):
        manage.load_latest({"net": training.model}, init_from=tmp_path / "a", fresh_optimizer=True)


@pytest.mark.parametrize("run_id", ["", "a-1"])
def test_of_two_managers_in_one_process_the_one_that_saved_last_goes_on(place: Place, run_id: str) -> None:
    training = Training()
    number = 0 if run_id else None  # under `dist-train launch` both are of one attempt
    first, second = (CheckpointManager(place.location, run_id=run_id, attempt=number) for _ in "12")
    first.save(1, training.state)
    second.save(3, training.state)
    with pytest.raises(CheckpointWriteError) as caught:
        first.save(2, training.state)
    error = caught.value
    assert error.what == f"another CheckpointManager of this process now saves in {place.storage.location}"
    assert "one manager" in str(error.hint)
    second.save(4, training.state)
    assert second.steps() == first.steps() == [1, 3, 4], "nothing of the other's was moved aside"


def test_a_second_manager_that_only_reads_takes_nothing_over(place: Place) -> None:
    training = Training()
    first = run_of("a-1", place.location)
    first.save(1, training.state)
    reader = run_of("a-1", place.location)
    assert reader.load_latest(training.state) is not None
    first.save(2, training.state)
    assert first.steps() == [1, 2]


def begin(directory: Path, run_id: str, attempt: int, answers: Any) -> None:
    try:
        CheckpointManager(directory, run_id=run_id, attempt=attempt if run_id else None).begin_attempt()
        answers.put((True, ""))
    except CheckpointError as error:
        answers.put((False, str(error)))


def write_elsewhere(directory: Path, run_id: str, attempt: int) -> tuple[bool, str]:
    """Begin an attempt in another process, which then ends."""
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(target=begin, args=(directory, run_id, attempt, answers))
    process.start()
    process.join(60)
    begun, text = answers.get()
    return begun, text


def test_a_second_live_writer_is_refused_unless_it_is_a_newer_attempt_of_the_run(tmp_path: Path) -> None:
    CheckpointManager(tmp_path / "script").begin_attempt()
    run_of("a-1", tmp_path / "run").begin_attempt()
    begun, text = write_elsewhere(tmp_path / "script", "", 0)
    assert not begun
    assert f"is being written by process {os.getpid()} on " in text
    begun, text = write_elsewhere(tmp_path / "run", "b-2", 0)
    assert not begun, "no checkpoint is there yet, but its run lives"
    assert "run a-1" in text
    # A rank that was declared lost may live on: its run goes on without it.
    assert write_elsewhere(tmp_path / "run", "a-1", 1) == (True, "")


def test_a_dead_writer_is_no_writer(tmp_path: Path) -> None:
    assert write_elsewhere(tmp_path, "", 0)[0]
    CheckpointManager(tmp_path).begin_attempt()
