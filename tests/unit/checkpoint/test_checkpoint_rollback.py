"""A save after a rollback: what it supersedes is moved aside, and `load_latest` gives the new timeline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_cases import Training, manager
from checkpoint_places import Place

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.quarantine import quarantine
from dist_train.errors import CheckpointWriteError

KEPT = 10


def saved(place: Place, *steps: int) -> tuple[CheckpointManager, Training]:
    """Train and save at each of these steps."""
    training, manage = Training(), manager(place.location, keep_last=9)
    for step in steps:
        training.train()
        manage.save(step, training.state)
    return manage, training


def test_a_save_after_a_rollback_moves_what_it_supersedes_aside(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    manage, training = saved(place, 100, 200, 300)
    manage.load(100, training.state)
    assert manage.steps() == [100, 200, 300], "a load alone changes nothing"
    training.train(3)
    ours = manage.save(150, training.state)
    assert manage.steps() == [100, 150]
    assert {f"quarantine/step-00000{step}-1" for step in (200, 300)} == set(place.storage.quarantined())
    assert "moved step-00000300 to quarantine/step-00000300-1: superseded: the run went on from step 100" in (
        caplog.text
    )
    restored = manager(place.location, attempt=1).load_latest(training.state)
    assert restored is not None
    assert (restored.step, restored.state_hash) == (150, ours.state_hash)


def test_a_later_save_moves_those_between_aside_too(place: Place) -> None:
    manage, training = saved(place, 100, 200, 300)
    manage.load(100, training.state)
    training.train(3)
    manage.save(400, training.state)
    training.train()
    manage.save(500, training.state)
    assert manage.steps() == [100, 400, 500]


def test_the_same_state_reached_again_supersedes_nothing(place: Place) -> None:
    manage, training = saved(place, 100, 200, 300)
    manage.load(100, training.state)
    training.train()
    manage.save(200, training.state)
    assert manage.steps() == [100, 200, 300]


def test_a_process_that_restored_nothing_supersedes_later_steps_only(place: Place) -> None:
    saved(place, 100, 200, 300)
    training = Training(seed=4)
    manager(place.location, attempt=1, keep_last=9).save(250, training.state)
    assert manager(place.location, attempt=1).steps() == [100, 200, 250]


def test_a_save_that_fails_moves_nothing_aside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    manage, training = saved(place, 100, 200, 300)
    manage.load(100, training.state)
    training.train(3)
    with monkeypatch.context() as patch:
        patch.setattr(type(place.storage), "free_bytes", lambda _storage: 1)
        with pytest.raises(CheckpointWriteError):
            manage.save(150, training.state)
    assert manage.steps() == [100, 200, 300]
    manage.save(150, training.state)
    assert manage.steps() == [100, 150]


def test_a_step_saved_again_after_its_epoch_s_loop_replaces_the_first(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """`save_if_due` at the last batch, and one more save of the same step after the schedule's."""
    manage, training = saved(place, 100, 200)
    training.train()
    second = manage.save(200, training.state)
    assert manage.steps() == [100, 200]
    assert place.manifest(200).state_hash == second.state_hash
    assert place.storage.quarantined() == []
    assert "moved" not in caplog.text


def test_quarantine_keeps_the_newest_ten_and_says_what_it_removes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FileStorage(tmp_path)
    for number in range(KEPT + 3):
        (tmp_path / "step-00000007").mkdir()
        quarantine(storage, "step-00000007", f"reason {number}")
    left = storage.quarantined()
    assert len(left) == KEPT
    assert sorted(left) == sorted(f"quarantine/{name}" for name in os.listdir(tmp_path / "quarantine"))
    assert "removed quarantine/step-00000007-1: quarantine/ keeps the newest 10" in caplog.text
