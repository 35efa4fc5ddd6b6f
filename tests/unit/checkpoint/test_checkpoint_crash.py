"""A crash at any change to the disk leaves the last committed checkpoint or the one before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_cases import Training, manager, saved_run
from checkpoint_crash import Crash, DyingFiles

from dist_train.checkpoint.store.fence import read_fence
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.errors import CheckpointError


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """Steps 1 and 2, and the leavings of a save that was killed."""
    directory = tmp_path_factory.mktemp("before")
    hashes = saved_run(directory, 2, keep_last=2)
    left = directory / ".step-3.tmp-0"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"torn")
    return directory, hashes


def resume_and_save(directory: Path, keep_last: int = 2, background: bool = False) -> str:
    """What an attempt does: load the newest, make one step, save; step 1 goes, by keep_last."""
    training, manage = Training(), manager(directory, attempt=1, keep_last=keep_last)
    restored = manage.load_latest(training.state)
    assert restored is not None
    training.train()
    if not background:
        return manage.save(restored.step + 1, training.state).weights_hash
    manage.start_save(restored.step + 1, training.state)
    training.train(2)
    committed = manage.wait()
    assert committed is not None
    return committed.weights_hash


@pytest.fixture(scope="module")
def changes(before, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    directory = tmp_path_factory.mktemp("count") / "run"
    shutil.copytree(before[0], directory)
    files = DyingFiles(directory)
    with pytest.MonkeyPatch.context() as patch:
        files.install(patch)
        third = resume_and_save(directory)
    assert any("rename step-00000003" in line for line in files.log)
    assert any("rename fence.json" in line for line in files.log)
    assert any("unlink step-00000001" in line or "rename .step-1.old-1" in line for line in files.log)
    return files.count, third


@pytest.mark.proves(
    "A crash or power loss at any file operation of a save leaves a whole checkpoint",
    limits="a model of the file system's promises",
)
@pytest.mark.parametrize("background", [False, True], ids=["waited for", "in the background"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("part", range(4))
def test_any_crash_leaves_a_whole_checkpoint(
    tmp_path: Path, before, changes, power: bool, part: int, background: bool
) -> None:
    count, third = changes
    hashes = {**before[1], 3: third}
    # Small tensors are written together: few writes, each of them torn once.
    assert count > 30
    seen = set()
    for at in range(1 + part, count + 1, 4):
        directory = tmp_path / f"{at}"
        shutil.copytree(before[0], directory)
        files = DyingFiles(directory, at, power)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            with pytest.raises(Crash):
                resume_and_save(directory, background=background)
        files.settle()

        again = Training(seed=9)
        reader = manager(directory, attempt=2, keep_last=2)
        restored = reader.load_latest(again.state)
        assert restored is not None
        assert restored.step in (2, 3), files.log[-1]
        assert again.weights() == hashes[restored.step], files.log[-1]
        seen.add(restored.step)
        assert not [n for n in FileStorage(directory).names() if n.startswith(".")]
        # Nothing was damaged on the way, so nothing had to be set aside.
        assert not (directory / "quarantine").exists(), files.log[-1]
        again.train()
        reader.save(restored.step + 1, again.state)
        assert all(verify_checkpoint(directory / f"step-{s:08d}").ok for s in reader.steps())
        shutil.rmtree(directory)
    assert 2 in seen


@pytest.mark.parametrize("keep_last", [2, 3], ids=["and one goes", "and none goes"])
def test_what_save_has_returned_for_survives_a_power_cut(tmp_path: Path, before, keep_last: int) -> None:
    shutil.copytree(before[0], tmp_path, dirs_exist_ok=True)
    files = DyingFiles(tmp_path, power=True)
    with pytest.MonkeyPatch.context() as patch:
        files.install(patch)
        third = resume_and_save(tmp_path, keep_last)
    files.settle()
    again = Training(seed=9)
    restored = manager(tmp_path, attempt=2).load_latest(again.state)
    assert restored is not None
    assert (restored.step, again.weights()) == (3, third)


def test_a_fence_survives_a_power_cut(tmp_path: Path, before) -> None:
    shutil.copytree(before[0], tmp_path, dirs_exist_ok=True)
    files = DyingFiles(tmp_path, power=True)
    with pytest.MonkeyPatch.context() as patch:
        files.install(patch)
        manager(tmp_path, attempt=5).begin_attempt()
    files.settle()
    fence = read_fence(FileStorage(tmp_path))
    assert fence is not None
    assert fence.attempt == 5


@pytest.mark.parametrize("forgotten", ["model.safetensors", "manifest.json", ".step-3.tmp-1"])
def test_the_harness_sees_a_sync_that_is_missing(tmp_path: Path, before, forgotten: str) -> None:
    """Were one fsync before the rename left out, a power cut would show a step 3 that is not whole."""
    shutil.copytree(before[0], tmp_path, dirs_exist_ok=True)
    files = DyingFiles(tmp_path, power=True)
    files.forget = forgotten
    with pytest.MonkeyPatch.context() as patch:
        files.install(patch)
        resume_and_save(tmp_path)
    files.settle()
    with pytest.raises(CheckpointError):
        manager(tmp_path, attempt=2).verify(3)
