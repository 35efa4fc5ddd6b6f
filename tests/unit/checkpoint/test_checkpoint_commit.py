"""The commit rule: one rename, equal states, other attempts, full disks."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_cases import Training, manager, saved_run
from checkpoint_crash import FullDisk

from dist_train.checkpoint import storage
from dist_train.checkpoint.fence import read_fence
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.verify import list_checkpoints
from dist_train.errors import CheckpointError, CheckpointWriteError


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_same_state_again_leaves_the_first_in_place(tmp_path: Path) -> None:
    training = Training()
    training.train()
    first = manager(tmp_path).save(1, training.state)
    again = manager(tmp_path, attempt=1).save(1, training.state)
    assert again.self_hash == first.self_hash
    assert names(tmp_path) == {"step-00000001", "fence.json"}


def test_another_state_at_the_same_step_moves_the_first_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    first = manager(tmp_path).save(1, training.state)
    training.train()
    second = manager(tmp_path, attempt=1).save(1, training.state)
    assert second.state_hash != first.state_hash
    assert names(tmp_path) == {"step-00000001", "fence.json", "quarantine"}
    assert "reached again with another state" in caplog.text
    other = Training(seed=3)
    manager(tmp_path, attempt=2).load_latest(other.state)
    assert other.weights() == second.weights_hash


def test_an_equal_but_damaged_one_is_replaced(tmp_path: Path) -> None:
    training = Training()
    first = manager(tmp_path).save(1, training.state)
    (first.path / "state.json").write_bytes(b"{}")
    second = manager(tmp_path, attempt=1).save(1, training.state)
    assert second.self_hash != first.self_hash
    assert manager(tmp_path).verify(1).ok


def test_enoent_after_a_rename_that_worked_is_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def answered_twice(source: Path, target: Path) -> None:
        real(source, target)
        if Path(target).name == "step-00000001":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))

    monkeypatch.setattr(os, "rename", answered_twice)
    committed = manager(tmp_path).save(1, Training().state)
    assert committed.path.is_dir()
    assert names(tmp_path) == {"step-00000001", "fence.json"}


def test_a_rename_that_did_not_work_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(target))

    manage = manager(tmp_path)
    manage.begin_attempt()
    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(CheckpointWriteError, match=r"step 1 could not be written: .*Input/output error"):
        manage.save(1, Training().state)
    assert names(tmp_path) == {"fence.json"}


def test_a_zombie_cannot_commit_and_what_it_slips_in_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = manager(tmp_path, attempt=1), manager(tmp_path, attempt=2)
    training = Training()
    training.train()
    first = old.save(1, training.state)
    new.begin_attempt()
    assert read_fence(tmp_path).accepts == {(1, first.self_hash)}
    training.train()
    with pytest.raises(CheckpointWriteError, match="attempt 2 has taken over"):
        old.save(2, training.state)
    # The check cannot be atomic with the rename on a file server: the late rename gets through.
    with monkeypatch.context() as patch:
        patch.setattr("dist_train.checkpoint.commit._refuse_if_superseded", lambda *_: None)
        old.save(2, training.state)
    assert [line.problem for line in list_checkpoints(tmp_path)] == [
        None,
        "written by attempt 1, which had been given up",
    ]
    restored = manager(tmp_path, attempt=3).load_latest(training.state)
    assert restored is not None
    assert restored.step == 1
    assert "written by attempt 1 after a newer attempt had begun" in caplog.text
    assert (tmp_path / "quarantine" / "step-00000002-1").is_dir()
    with pytest.raises(CheckpointError, match="belongs to attempt 3; this is attempt 2"):
        manager(tmp_path, attempt=2).load_latest(training.state)


def test_our_save_replaces_a_zombies_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = manager(tmp_path, attempt=1), manager(tmp_path, attempt=2)
    training = Training()
    old.begin_attempt()
    new.begin_attempt()
    with monkeypatch.context() as patch:
        patch.setattr("dist_train.checkpoint.commit._refuse_if_superseded", lambda *_: None)
        zombie = old.save(1, training.state)
    ours = new.save(1, training.state)
    assert ours.self_hash != zombie.self_hash
    restored = manager(tmp_path, attempt=3).load_latest(training.state)
    assert restored is not None
    assert restored.path.name == "step-00000001"


def test_a_new_attempt_sweeps_older_staging_areas_but_not_newer(tmp_path: Path) -> None:
    for name in (".step-4.tmp-0", ".step-5.old-1", ".step-6.tmp-7", ".fence.json.tmp-0", "notes.txt"):
        (tmp_path / name).mkdir()
    manager(tmp_path, attempt=2).begin_attempt()
    assert names(tmp_path) == {".step-6.tmp-7", "notes.txt", "fence.json"}


def test_a_damaged_fence_is_said_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved_run(tmp_path, 1)
    raw = bytearray((tmp_path / "fence.json").read_bytes())
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1 << (position % 8)
        (tmp_path / "fence.json").write_bytes(changed)
        assert read_fence(tmp_path) is None
    assert "fence.json is damaged" in caplog.text
    assert manager(tmp_path, attempt=1).load_latest(Training().state) is not None


def test_without_an_agent_only_saving_takes_a_directory_over(tmp_path: Path) -> None:
    trainer = CheckpointManager(tmp_path)
    training = Training()
    trainer.save(1, training.state)
    reader = CheckpointManager(tmp_path)
    assert reader.load_latest(Training().state) is not None
    trainer.save(2, training.state)
    assert read_fence(tmp_path).attempt == 0
    reader.save(3, training.state)
    assert read_fence(tmp_path).attempt == 1
    with pytest.raises(CheckpointWriteError, match="attempt 1 has taken over"):
        trainer.save(4, training.state)


def test_beginning_an_attempt_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 3)
    monkeypatch.setattr("dist_train.checkpoint.blocks.VerifiedReader.__init__", None)
    manager(tmp_path, attempt=1).begin_attempt()
    assert len(read_fence(tmp_path).accepts) == 3


def test_a_checkpoint_that_does_not_read_back_costs_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, manage = Training(), manager(tmp_path, keep_last=2)
    for step in (1, 2):
        manage.save(step, training.state)
    from dist_train.checkpoint import writer

    def publish_and_harm(*arguments):
        manifest = publish(*arguments)
        file = tmp_path / "step-00000003" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        return manifest

    publish = writer.publish
    monkeypatch.setattr(writer, "publish", publish_and_harm)
    with pytest.raises(
        CheckpointWriteError, match=r"does not read back as it was written: model\.safetensors"
    ):
        manage.save(3, training.state)
    assert manage.steps() == [1, 2]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "fsync", "close"])
@pytest.mark.parametrize("at", [1, 4, 5], ids=["first file", "state.json", "manifest"])
def test_a_full_disk_is_said_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, at: int, code: int
) -> None:
    training, manage = Training(), manager(tmp_path, keep_last=2)
    training.train()
    for step in (1, 2):
        manage.save(step, training.state)
    with monkeypatch.context() as patch:
        FullDisk(tmp_path, operation, at, code).install(patch)
        with pytest.raises(CheckpointWriteError) as caught:
            manage.save(3, training.state)
    text = str(caught.value)
    assert caught.value.exit_code == 74
    assert os.strerror(code) in text
    assert f"{tmp_path}/.step-3.tmp-0" in text
    assert "bytes and" in text
    assert "the last good checkpoint (step 2) stays" in text
    assert names(tmp_path) == {"step-00000001", "step-00000002", "fence.json"}
    manage.save(3, training.state)
    assert manage.steps() == [2, 3]


def test_too_little_room_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 1)
    monkeypatch.setattr("dist_train.checkpoint.writer.free_bytes", lambda _path: 1234)
    with pytest.raises(CheckpointWriteError, match=r"needs [\d,]+ bytes; .* has 1,234 bytes free") as caught:
        manager(tmp_path, attempt=1).save(2, Training().state)
    assert "(step 1) stays" in str(caught.value)
    assert names(tmp_path) == {"step-00000001", "fence.json"}


REAL_DISK = """
import json, sys, torch
from pathlib import Path
from dist_train.checkpoint import writer
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.errors import CheckpointWriteError
manage = CheckpointManager(sys.argv[1], keep_last=2)
manage.save(1, {"x": torch.zeros(2**19)})
told = []
for look in (True, False):
    if not look:
        writer.free_bytes, real = (lambda path: 2**60), writer.free_bytes
    try:
        manage.save(2, {"x": torch.zeros(2**21)})
    except CheckpointWriteError as error:
        told.append([int(error.exit_code), str(error)])
print(json.dumps([told, sorted(p.name for p in Path(sys.argv[1]).iterdir()), manage.verify(1).ok]))
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_really_full_disk(tmp_path: Path) -> None:
    """8 MiB of tmpfs in a mount namespace of its own; with and without the look at the free space."""
    target = tmp_path / "disk"
    target.mkdir()
    mount = f'mount -t tmpfs -o size=8m none "{target}" && exec "$0" -c "$1" "{target}"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, sys.executable, REAL_DISK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told, left, whole = json.loads(done.stdout)
    assert [code for code, _text in told] == [74, 74]
    assert "needs 8," in told[0][1]
    assert "No space left on device" in told[1][1]
    assert all("(step 1) stays" in text for _code, text in told)
    assert left == ["fence.json", "step-00000001"]
    assert whole


def test_storage_makes_directories_durably(tmp_path: Path) -> None:
    storage.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    storage.remove_tree(tmp_path / "a")
    storage.remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_directory_that_cannot_be_written_can_still_be_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hashes = saved_run(tmp_path, 2)
    (tmp_path / "step-00000002" / "state.json").unlink()

    def read_only(*_arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", read_only)
    monkeypatch.setattr(os, "mkdir", read_only)
    training = Training(seed=4)
    with caplog.at_level(logging.WARNING):
        assert CheckpointManager(tmp_path).load_latest(training.state) is not None
    assert training.weights() == hashes[1]
    assert "stays in place" in caplog.text


def test_other_nodes_wait_for_the_exact_path(tmp_path: Path) -> None:
    import threading

    from dist_train.checkpoint.locate import open_exactly

    saved_run(tmp_path, 1)
    path = tmp_path / "step-00000001"
    manifest = json.loads((path / "manifest.json").read_bytes())
    hidden = tmp_path / "hidden"
    path.rename(hidden)
    started = time.monotonic()
    timer = threading.Timer(0.3, lambda: hidden.rename(path))
    timer.start()
    assert open_exactly(path, manifest["self_hash"], appear_s=10).manifest.step == 1
    assert 0.2 < time.monotonic() - started < 5
    timer.join()
    with pytest.raises(CheckpointError, match="is another checkpoint than the one that rank 0 reads"):
        open_exactly(path, "0" * 32)
    with pytest.raises(CheckpointError, match="did not appear on"):
        open_exactly(tmp_path / "step-00000002", "0" * 32, appear_s=0)
