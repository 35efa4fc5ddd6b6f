"""Saves in the background: what is changed after start_save never reaches the disk, what fails is told."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Training, manager, manifest_of
from checkpoint_crash import FullDisk

from dist_train.checkpoint import CheckpointManager, Committed, PerRank
from dist_train.checkpoint.background.staging_buffer import StagingBuffer
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.errors import CheckpointWriteError


class Held:
    """Lets the thread of a save go on only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str = "mkdir") -> None:
        self._go = threading.Event()
        real = getattr(os, operation)

        def held(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                assert self._go.wait(30)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, operation, held)

    def release(self) -> None:
        self._go.set()


def poison(training: Training, extra: dict[str, Any]) -> None:
    """Overwrite whatever was saved, in place."""
    with torch.no_grad():
        for tensor in training.model.state_dict().values():
            tensor.fill_(7)
        for state in training.optimizer.state.values():
            for value in state.values():
                value.fill_(7)
    training.optimizer.param_groups[0]["lr"] = 7.0
    training.schedule.last_epoch = 7
    training.loader.at = 7
    extra["list"].append(7)
    extra["dict"]["inner"]["x"] = 7
    extra["tensor"].fill_(7)
    extra["array"].numpy()[:] = 7


def everything(training: Training) -> dict[str, Any]:
    """The state of a training, with values of the user's own."""
    extra = {
        "list": [1, 2],
        "dict": {"inner": {"x": 1}},
        "tensor": torch.arange(12.0).reshape(3, 4).t(),  # not contiguous
        "array": torch.arange(5),
    }
    return {**training.state, **{f"extra_{key}": value for key, value in extra.items()}}


def test_what_is_changed_after_start_save_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    training.train(3)
    state = everything(training)
    expected = manager(tmp_path / "waits").save(3, state)

    saves = manager(tmp_path / "goes on")
    held = Held(monkeypatch)
    pending = saves.start_save(3, state)
    poison(training, {key.removeprefix("extra_"): value for key, value in state.items()})
    assert not pending.is_done
    held.release()
    committed = saves.wait()

    assert committed is not None
    assert committed.state_hash == expected.state_hash
    assert committed.weights_hash == expected.weights_hash
    assert verify_checkpoint(committed.path).ok
    assert manifest_of(tmp_path / "goes on", 3).state_hash == expected.state_hash
    again = everything(Training(seed=5))
    restored = saves.load_latest(again)
    assert restored is not None
    assert again["extra_tensor"].tolist() == torch.arange(12.0).reshape(3, 4).t().tolist()


def test_a_score_that_is_a_tensor_is_that_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, held, score = manager(tmp_path, keep_best=1), Held(monkeypatch), torch.tensor(1.0)
    saves.start_save(1, {"x": 1}, score=score)
    score.fill_(9)
    held.release()
    committed = saves.wait()
    assert committed is not None
    assert '"score":1.0' in (committed.path / "state.json").read_text()


def test_another_manager_does_not_remove_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, held = manager(tmp_path), manager(tmp_path), Held(monkeypatch, "fsync")
    first.start_save(1, {"x": 1})
    for save in (second.save, second.start_save):
        with pytest.raises(CheckpointWriteError, match="is still writing in"):
            save(2, {"x": 2})
    held.release()
    committed = first.wait()
    assert committed is not None
    assert verify_checkpoint(committed.path).ok
    assert second.save(2, {"x": 2}).step == 2


def test_the_next_save_does_not_change_what_is_still_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, saves = Training(), manager(tmp_path)
    hashes = []
    for step in (1, 2, 3):
        training.train()
        hashes.append(manager(tmp_path / f"{step}").save(step, training.state).state_hash)
        saves.start_save(step, training.state)  # waits for the one before
    saves.wait()
    assert [manifest_of(tmp_path, step).state_hash for step in (1, 2, 3)] == hashes


def test_a_resumed_run_goes_on_as_if_nothing_had_been_saved(tmp_path: Path) -> None:
    training = Training()
    training.train(2)
    saves = manager(tmp_path)
    saves.start_save(2, training.state)
    training.train(2)
    again = Training(seed=4)
    restored = saves.load_latest(again.state)  # waits for the save
    assert restored is not None
    again.train(2)
    assert again.weights() == training.weights()


def test_on_commit_is_called_once_by_the_thread_that_saves(tmp_path: Path) -> None:
    calls: list[tuple[int, threading.Thread]] = []

    def note(committed: Committed) -> None:
        calls.append((committed.step, threading.current_thread()))

    saves = manager(tmp_path, on_commit=note, every_steps=2, asynchronous=True)
    training = Training()
    assert [saves.save_if_due(step, training.state) for step in (1, 2, 3, 4)] == [False, True, False, True]
    committed = saves.wait()
    assert committed is not None
    assert 0 < committed.stall_seconds <= committed.seconds
    assert calls == [(2, threading.main_thread()), (4, threading.main_thread())]
    assert saves.wait() is None
    assert saves.poll() is None


def test_poll_asks_and_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves, held = manager(tmp_path), Held(monkeypatch)
    pending = saves.start_save(1, {"x": 1})
    assert saves.poll() is None
    held.release()
    deadline = time.monotonic() + 30
    while not pending.is_done and time.monotonic() < deadline:
        time.sleep(0.01)
    committed = saves.poll()
    assert committed is not None
    assert committed.step == 1


@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_a_disk_that_is_full_is_an_error_of_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    training, saves = Training(), manager(tmp_path)
    saves.save(1, training.state)
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(tmp_path, operation, 1, errno.ENOSPC).install(patch)
        pending = saves.start_save(2, training.state)
        while not pending.is_done:
            time.sleep(0.01)
    with pytest.raises(CheckpointWriteError, match=r"step 2 could not be written.*No space left"):
        saves.start_save(3, training.state)
    assert saves.steps() == [1]
    saves.start_save(3, training.state)  # the error is raised once
    saves.wait()
    assert saves.steps() == [1, 3]


def test_what_cannot_be_stored_is_an_error_at_once(tmp_path: Path) -> None:
    from dist_train.errors import CheckpointError

    saves = manager(tmp_path)
    with pytest.raises(CheckpointError, match="'x' is of type"):
        saves.start_save(1, {"x": object()})
    assert saves.wait() is None


def run_script(tmp_path: Path, rest: str) -> subprocess.CompletedProcess[str]:
    """A script that starts a save of 8 MB and ends by `rest`."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, torch, dist_train as dt\n"
        "from dist_train.checkpoint import CheckpointManager\n"
        + rest.replace("DIRECTORY", repr(str(tmp_path / "checkpoints")))
    )
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )


SAVE = """
manager = CheckpointManager(DIRECTORY)
x = torch.arange(2_000_000.0)
manager.start_save(1, {"x": x})
x.zero_()
"""


PROOF = pytest.mark.proof  # each imports torch


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        pytest.param(SAVE, 0, id="end", marks=PROOF),
        pytest.param(f"run = dt.init(device='cpu')\n{SAVE}", 0, id="end of a run", marks=PROOF),
        pytest.param(f"run = dt.init(device='cpu')\n{SAVE}\nrun.close()", 0, id="closed", marks=PROOF),
        pytest.param(f"run = dt.init(device='cpu')\n{SAVE}\nraise ValueError('mine')", 1, id="exception"),
        pytest.param(f"{SAVE}\nsys.exit(3)", 3, id="sys.exit", marks=PROOF),
        pytest.param(f"{SAVE}\nos.waitpid(os.fork() or sys.exit(0), 0)", 0, id="fork", marks=PROOF),
    ],
)
def test_a_process_that_ends_waits_for_its_save(tmp_path: Path, rest: str, code: int) -> None:
    ended = run_script(tmp_path, rest)
    assert ended.returncode == code, ended.stderr
    x = {"x": torch.zeros(2_000_000)}
    assert CheckpointManager(tmp_path / "checkpoints").load_latest(x) is not None
    assert torch.equal(x["x"], torch.arange(2_000_000.0))


@pytest.mark.proof
def test_a_run_that_ends_tells_of_its_failed_save(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
with dt.init(device='cpu') as run:
    real = os.write
    def full(descriptor, data):
        if "checkpoints" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, os.strerror(28))
        return real(descriptor, data)
    manager = CheckpointManager(DIRECTORY)
    manager.begin_attempt()
    os.write = full
    manager.start_save(1, {"x": 1})
""",
    )
    assert ended.returncode == 1
    assert "CheckpointWriteError: the checkpoint of step 1 could not be written" in ended.stderr


def test_a_forked_child_does_not_wait_for_its_parents_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, held = manager(tmp_path), Held(monkeypatch)
    saves.start_save(1, {"x": torch.ones(3)})
    child = os.fork()
    if child == 0:
        os._exit(0 if saves.wait() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.release()
    committed = saves.wait()
    assert committed is not None
    assert committed.step == 1


class Replay:
    """What is each rank's own."""

    def __init__(self) -> None:
        self.seen = torch.arange(4.0)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_per_rank_state_is_copied_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, saves, held = Replay(), manager(tmp_path), Held(monkeypatch)
    saves.start_save(1, {"replay": PerRank(replay)})
    replay.seen.zero_()
    held.release()
    saves.load_latest({"replay": PerRank(replay)})
    assert replay.seen.tolist() == [0, 1, 2, 3]


def test_the_buffer_is_used_again_and_grows_as_needed() -> None:
    buffer = StagingBuffer()
    tensors = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        "b": torch.tensor(True),
        "c": torch.zeros(0, 3),
        "d": torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128).conj(),
        "e": torch.zeros(5, dtype=torch.float8_e4m3fn),
    }
    first = buffer.copy(tensors)
    assert all(
        torch.equal(first[name].double(), tensor.double()) for name, tensor in tensors.items() if name != "d"
    )
    assert torch.equal(first["d"], tensors["d"])
    assert all(copy.is_contiguous() and not copy.is_conj() for copy in first.values())
    size = buffer.nbytes
    tensors["a"].fill_(9)
    assert buffer.copy(tensors)["a"].data_ptr() == first["a"].data_ptr()
    assert buffer.copy({"b": torch.zeros(2)})["b"].data_ptr() == first["a"].data_ptr()
    assert buffer.nbytes == size
    assert buffer.copy({"b": torch.zeros(1000)})["b"].tolist() == [0] * 1000
    assert buffer.nbytes > size


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.proves("1,000 saves in the background leave the memory as it was")
def test_memory_is_flat_over_1000_saves(tmp_path: Path) -> None:
    in_memory = Path("/dev/shm", f"dist-train-{os.getpid()}")
    try:
        save_often(in_memory if in_memory.parent.is_dir() else tmp_path)
    finally:
        shutil.rmtree(in_memory, ignore_errors=True)


def save_often(directory: Path) -> None:
    saves, x = manager(directory, keep_last=2), torch.zeros(64, 1024)
    threads, sizes = [], []
    for step in range(1, 1001):
        x += 1
        saves.start_save(step, {"x": x, "list": [step] * 10})
        if step % 100 == 0:
            saves.wait()
            gc.collect()
            sizes.append(resident())
            threads.append(threading.active_count())
    print("resident MiB after each 100 saves:", [round(size / 2**20, 1) for size in sizes])
    assert sizes[-1] - sizes[1] < 4 << 20
    assert max(threads) == threads[0]
