"""The commit rule: one rename, equal states, other attempts, full disks."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from checkpoint_cases import Training, manager, saved_run
from checkpoint_crash import FullDisk
from checkpoint_places import Place

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.fence import read_fence
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.find_latest import load_exact
from dist_train.checkpoint.store.verify import list_checkpoints
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.rundir import durable_files


def names(directory: Path) -> set[str]:
    return set(FileStorage(directory).names())


def test_the_same_state_again_leaves_the_first_in_place(place: Place) -> None:
    training = Training()
    training.train()
    first = manager(place.location).save(1, training.state)
    again = manager(place.location, attempt=1).save(1, training.state)
    assert again.self_hash == first.self_hash
    assert place.names() == {"step-00000001", "fence.json"}


def test_another_state_at_the_same_step_moves_the_first_aside(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    first = manager(place.location).save(1, training.state)
    training.train()
    second = manager(place.location, attempt=1).save(1, training.state)
    assert second.state_hash != first.state_hash
    assert place.names() - {"quarantine"} == {"step-00000001", "fence.json"}
    assert place.storage.exists("quarantine/step-00000001-1")
    assert "reached again with another state" in caplog.text
    other = Training(seed=3)
    manager(place.location, attempt=2).load_latest(other.state)
    assert other.weights() == second.weights_hash


def test_an_equal_but_damaged_one_is_replaced(place: Place) -> None:
    training = Training()
    first = manager(place.location).save(1, training.state)
    place.write("step-00000001/state.json", b"{}")
    second = manager(place.location, attempt=1).save(1, training.state)
    assert second.self_hash != first.self_hash
    assert manager(place.location).verify(1).ok


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


def test_an_older_attempt_cannot_commit_and_a_late_commit_is_quarantined(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = manager(place.location, attempt=1), manager(place.location, attempt=2)
    training = Training()
    training.train()
    first = old.save(1, training.state)
    new.begin_attempt()
    assert place.fence().accepts == {(1, first.self_hash)}
    training.train()
    with pytest.raises(CheckpointWriteError, match="attempt 2 has taken over"):
        old.save(2, training.state)
    # The check cannot be atomic with the rename on a file server: the late rename gets through.
    with monkeypatch.context() as patch:
        patch.setattr("dist_train.checkpoint.store.commit._refuse_if_superseded", lambda *_: None)
        old.save(2, training.state)
    assert [line.problem for line in list_checkpoints(place.location)] == [
        None,
        "written by attempt 1, which had been given up",
    ]
    restored = manager(place.location, attempt=3).load_latest(training.state)
    assert restored is not None
    assert restored.step == 1
    assert "written by attempt 1 after a newer attempt had begun" in caplog.text
    assert place.storage.exists("quarantine/step-00000002-1")
    with pytest.raises(CheckpointError, match="belongs to attempt 3; this is attempt 2"):
        manager(place.location, attempt=2).load_latest(training.state)


def test_our_save_replaces_an_equal_one_of_an_older_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = manager(place.location, attempt=1), manager(place.location, attempt=2)
    training = Training()
    old.begin_attempt()
    new.begin_attempt()
    with monkeypatch.context() as patch:
        patch.setattr("dist_train.checkpoint.store.commit._refuse_if_superseded", lambda *_: None)
        late = old.save(1, training.state)
    ours = new.save(1, training.state)
    assert ours.self_hash != late.self_hash
    restored = manager(place.location, attempt=3).load_latest(training.state)
    assert restored is not None
    assert restored.path.name == "step-00000001"


def test_a_new_attempt_sweeps_older_staging_areas_but_not_newer(place: Place) -> None:
    for name in (".step-4.tmp-0", ".step-5.old-1", ".step-6.tmp-7", ".fence.json.tmp-0", "notes.txt"):
        place.write(f"{name}/file", b"")
    manager(place.location, attempt=2).begin_attempt()
    assert place.names() == {".step-6.tmp-7", "notes.txt", "fence.json"}


def test_a_damaged_fence_is_reported_and_not_used(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    saved_run(place.location, 1)
    raw = bytearray(place.read("fence.json"))
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1 << (position % 8)
        place.write("fence.json", bytes(changed))
        assert read_fence(place.storage) is None
    assert "fence.json is damaged" in caplog.text
    assert manager(place.location, attempt=1).load_latest(Training().state) is not None


def test_without_an_agent_only_saving_takes_a_directory_over(place: Place) -> None:
    trainer = CheckpointManager(place.location)
    training = Training()
    trainer.save(1, training.state)
    reader = CheckpointManager(place.location)
    assert reader.load_latest(Training().state) is not None
    trainer.save(2, training.state)
    assert place.fence().attempt == 0
    reader.save(3, training.state)
    assert place.fence().attempt == 1
    with pytest.raises(CheckpointWriteError, match="another CheckpointManager of this process now saves"):
        trainer.save(4, training.state)


def test_beginning_an_attempt_reads_no_data(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(place.location, 3)
    monkeypatch.setattr("dist_train.checkpoint.format.verified_reader.VerifiedReader.__init__", None)
    manager(place.location, attempt=1).begin_attempt()
    assert len(place.fence().accepts) == 3


def test_a_checkpoint_that_does_not_read_back_costs_no_older_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, manage = Training(), manager(place.location, keep_last=2)
    for step in (1, 2):
        manage.save(step, training.state)
    from dist_train.checkpoint import snapshot_writer as writer

    def publish_and_harm(*arguments):
        manifest = publish(*arguments)
        place.flip("step-00000003/model.safetensors", -1, 0)
        return manifest

    publish = writer.publish
    monkeypatch.setattr(writer, "publish", publish_and_harm)
    with pytest.raises(
        CheckpointWriteError, match=r"does not read back as it was written: model\.safetensors"
    ):
        manage.save(3, training.state)
    assert manage.steps() == [1, 2]


def resident_pages(path: Path) -> int:
    """How many pages of a file are in the page cache."""
    size = path.stat().st_size
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        view = (ctypes.c_char * size).from_buffer(mapped)
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        if ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(view), ctypes.c_size_t(size), pages):
            raise OSError(ctypes.get_errno(), "mincore")
        del view
    return sum(page & 1 for page in pages)


def test_reading_back_asks_the_disk_and_not_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    advise = os.posix_fadvise

    def record(descriptor: int, start: int, count: int, advice: int) -> None:
        assert (start, count, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        advise(descriptor, start, count, advice)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        dropped.append(resident_pages(path) if path.name == "x.safetensors" else 0)

    monkeypatch.setattr(os, "posix_fadvise", record)
    manage = manager(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        assert not dropped
        manage.save(step, {"x": torch.zeros(2**18)})
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert len(dropped) >= 3, "model, state.json and the manifest, once an older checkpoint goes"
    assert kind == "tmpfs" or max(dropped) == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "fsync", "close"])
@pytest.mark.parametrize("at", [1, 4, 5], ids=["first file", "state.json", "manifest"])
def test_a_full_disk_is_reported_and_costs_nothing(
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


def test_too_little_space_is_found_before_anything_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(place.location, 1)
    monkeypatch.setattr(type(place.storage), "free_bytes", lambda _storage: 1234)
    with pytest.raises(CheckpointWriteError, match=r"needs [\d,]+ bytes; .* has 1,234 bytes free") as caught:
        manager(place.location, attempt=1).save(2, Training().state)
    assert "(step 1) stays" in str(caught.value)
    assert place.names() == {"step-00000001", "fence.json"}


REAL_DISK = """
import json, sys, torch
from pathlib import Path
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.file import FileStorage
from dist_train.errors import CheckpointWriteError
manage = CheckpointManager(sys.argv[1], keep_last=2)
manage.save(1, {"x": torch.zeros(2**19)})
errors = []
for look in (True, False):
    if not look:
        FileStorage.free_bytes = lambda storage: 2**60
    try:
        manage.save(2, {"x": torch.zeros(2**21)})
    except CheckpointWriteError as error:
        errors.append([int(error.exit_code), str(error)])
print(json.dumps([errors, sorted(manage.storage.names()), manage.verify(1).ok]))
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
    errors, left, whole = json.loads(done.stdout)
    assert [code for code, _text in errors] == [74, 74]
    assert "needs 8," in errors[0][1]
    assert "No space left on device" in errors[1][1]
    assert all("(step 1) stays" in text for _code, text in errors)
    assert left == ["fence.json", "step-00000001"]
    assert whole


def test_storage_makes_directories_durably(tmp_path: Path) -> None:
    durable_files.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    durable_files.remove_tree(tmp_path / "a")
    durable_files.remove_tree(tmp_path / "a")
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


def test_other_nodes_wait_for_the_exact_checkpoint(place: Place) -> None:
    saved_run(place.location, 1)
    name, self_hash = "step-00000001", place.manifest(1).self_hash
    raw = place.read(f"{name}/manifest.json")
    place.delete(f"{name}/manifest.json")
    started = time.monotonic()
    timer = threading.Timer(0.3, lambda: place.write(f"{name}/manifest.json", raw))
    timer.start()
    assert load_exact(place.storage, name, self_hash, appear_s=10).manifest.step == 1
    assert 0.2 < time.monotonic() - started < 5
    timer.join()
    with pytest.raises(CheckpointError, match="is another checkpoint than the one that rank 0 reads"):
        load_exact(place.storage, name, "0" * 32)
    with pytest.raises(CheckpointError, match="did not appear on"):
        load_exact(place.storage, "step-00000002", "0" * 32, appear_s=0)
