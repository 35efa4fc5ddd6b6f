"""One rank of a node reads and verifies a checkpoint; the others map its memory, and nothing else changes."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from checkpoint_cases import Training
from checkpoint_places import MemoryPlace, memory_registered

from dist_train.checkpoint import node_readers
from dist_train.checkpoint.format.layout import MANIFEST
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.format.node_memory import SharedMemory, open_offer
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state.per_rank import PerRank
from dist_train.checkpoint.store.file import FileStorage, FileStream
from dist_train.checkpoint.store.find_latest import load_newest
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointError, UnavailableError
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

TIMEOUT_S = 20.0


class Counted(FileStream):
    def __init__(self, path: Path, read: dict[str, int]) -> None:
        super().__init__(path)
        self._read = read

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self._read[Path(str(self.name)).name] += count
        return count


class Counting(FileStorage):
    """Counts the bytes of each file that are read; `fail` is called before a data file is opened."""

    def __init__(self, location: Path, fail: Callable[[], None] = lambda: None) -> None:
        super().__init__(location)
        self.bytes: dict[str, int] = {}
        self.fail = fail

    def open(self, key: str) -> Any:
        self.fail()
        name = key.rpartition("/")[2]
        self.bytes.setdefault(name, 0)
        return Counted(self.directory / key, self.bytes)


def manage(directory: Any, attempt: int = 0) -> CheckpointManager:
    torch_dist.init_process_group("gloo")
    rank, world_size = torch_dist.get_rank(), torch_dist.get_world_size()
    return CheckpointManager(
        directory, run_id="run", attempt=attempt, control=Control(torch_dist.group.WORLD, rank, world_size)
    )


def leave() -> None:
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def nodes(*of_ranks: int) -> None:
    """Pretend in this rank that each rank is on the node of this number."""
    node_readers._place = lambda rank: of_ranks[rank]


def sizes(directory: Path) -> dict[str, int]:
    files = (directory / "step-00000002").iterdir()
    return {file.name: file.stat().st_size for file in files if file.name != MANIFEST}


def save(directory: Path) -> str:
    manager = manage(directory)
    training = Training()
    training.train(2)
    committed = manager.save(2, training.state)
    leave()
    return committed.weights_hash


def count(directory: Path, exact: bool, of_ranks: tuple[int, ...] | None) -> tuple[str, dict[str, int]]:
    if of_ranks is not None:
        nodes(*of_ranks)
    storage = Counting(directory)
    manager = manage(storage, attempt=1)
    training = Training(seed=torch_dist.get_rank())
    restored = manager.load(2, training.state) if exact else manager.load_latest(training.state)
    assert restored is not None
    assert restored.rng_restored
    weights = training.weights()
    training.train(1)  # what was restored can be written to
    leave()
    return weights, storage.bytes


@pytest.mark.multiprocess
@pytest.mark.parametrize("exact", [False, True])
def test_one_rank_of_a_node_reads_and_the_others_get_the_same(tmp_path: Path, exact: bool) -> None:
    weights = run_ranks(save, 3, args=(tmp_path,))[0]
    found = run_ranks(count, 3, args=(tmp_path, exact, None))
    assert {of_rank for of_rank, _read in found} == {weights}
    assert [read for _weights, read in found] == [sizes(tmp_path), {}, {}]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("of_ranks", "readers"), [((0, 1, 1), [True, True, False]), ((0, 1, 2), [True] * 3)])
def test_each_node_reads_once(tmp_path: Path, of_ranks: tuple[int, ...], readers: list[bool]) -> None:
    run_ranks(save, 3, args=(tmp_path,))
    found = run_ranks(count, 3, args=(tmp_path, False, of_ranks))
    assert len({weights for weights, _read in found}) == 1
    assert [read for _weights, read in found] == [sizes(tmp_path) if reads else {} for reads in readers]


class Kept:
    """Keeps the tensors that it is given, as a replay buffer does."""

    def __init__(self, rank: int) -> None:
        self.kept = {"x": torch.full((3,), float(rank)), "deeper": [torch.ones(2)]}

    def state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state


EVERY_KIND = {
    "bfloat16": torch.arange(7).to(torch.bfloat16),
    "float8": torch.arange(5).float().to(torch.float8_e4m3fn),
    "complex128": torch.randn(3, 2, dtype=torch.complex128),
    "bool": torch.tensor([True, False, True]),
    "none": torch.empty(0, 4),
    "number": torch.tensor(3.5),
    "transposed": torch.arange(6).reshape(2, 3).T,
}


def keep(directory: Path) -> None:
    rank_manager = manage(directory)
    rank = torch_dist.get_rank()
    state = {"mine": PerRank(Kept(rank)), "object": Kept(5), "value": {"tensors": EVERY_KIND}}
    rank_manager.save(2, state)
    empty: dict[str, Any] = {"mine": PerRank(Kept(9)), "object": Kept(9), "value": {}}
    assert rank_manager.load_latest(empty) is not None
    assert empty["mine"].obj.kept["x"].tolist() == [rank] * 3
    assert empty["object"].kept["x"].tolist() == [5] * 3
    for name, tensor in EVERY_KIND.items():
        found = empty["value"]["tensors"][name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(
            found.contiguous().view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)
        )
    # What the objects keep does not hold the node's copy of the checkpoint, nor any descriptor of it.
    assert "dist-train-checkpoint" not in Path("/proc/self/maps").read_text()
    assert not any(
        "dist-train-checkpoint" in os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()
    )
    leave()


@pytest.mark.multiprocess
def test_every_kind_of_tensor_is_shared_and_what_is_kept_is_a_copy(tmp_path: Path) -> None:
    run_ranks(keep, 2, args=(tmp_path,))


def in_memory() -> list[float]:
    manager = manage("memory://run", attempt=1)
    state = {"x": torch.zeros(4)}
    assert manager.load_latest(state) is not None
    leave()
    return [float(value) for value in state["x"]]


@pytest.mark.multiprocess
def test_a_storage_without_files_too() -> None:
    with pytest.MonkeyPatch.context() as patch, memory_registered(patch):
        place = MemoryPlace("memory://run")
        # The ranks are forked and find what this process has put there.
        CheckpointManager(place.location, run_id="run", attempt=0).save(1, {"x": torch.arange(4.0)})
        assert run_ranks(in_memory, 2) == [[0.0, 1.0, 2.0, 3.0]] * 2


def may_not_map(directory: Path, unsealable: bool) -> tuple[dict[str, int], list[str]]:
    def refuse(*_: object) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    if unsealable:
        SharedMemory.offer = refuse  # type: ignore[method-assign]
    else:
        node_readers.open_offer = refuse
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dist_train.checkpoint").addHandler(handler)
    storage = Counting(directory)
    manager, training = manage(storage, attempt=1), Training(seed=4)
    assert manager.load_latest(training.state) is not None
    leave()
    return storage.bytes, [line for line in messages if "reads the checkpoint" in line]


@pytest.mark.multiprocess
@pytest.mark.parametrize("unsealable", [False, True])
def test_a_rank_that_may_not_map_the_memory_reads_by_itself_and_says_so(
    tmp_path: Path, unsealable: bool
) -> None:
    run_ranks(save, 2, args=(tmp_path,))
    first, second = run_ranks(may_not_map, 2, args=(tmp_path, unsealable))
    assert first[0] == second[0] == sizes(tmp_path)
    assert [len(first[1]), len(second[1])] == ([1, 0] if unsealable else [0, 1])


def of_its_own(directory: Path, of_ranks: tuple[int, ...]) -> None:
    """Rank 1 sees another directory, with a checkpoint of the same step."""
    rank = int(os.environ["RANK"])
    nodes(*of_ranks)
    manager = manage(directory / ("other" if rank == 1 else "run"), attempt=1)
    state = {"x": torch.zeros(4)}
    with pytest.raises(
        CheckpointError, match="is another checkpoint than the one that rank 0 reads"
    ) as caught:
        manager.load(1, state)
    assert ("on rank 1: " in str(caught.value)) == (rank != 1)
    assert caught.value.exit_code == CheckpointError("").exit_code
    assert state["x"].tolist() == [0] * 4
    leave()


@pytest.mark.multiprocess
@pytest.mark.parametrize("of_ranks", [(0, 0, 0), (0, 1, 1)])
def test_a_directory_that_is_not_shared_is_found_on_every_rank(
    tmp_path: Path, of_ranks: tuple[int, ...]
) -> None:
    for name, value in (("run", 1.0), ("other", 2.0)):
        CheckpointManager(tmp_path / name, run_id="run", attempt=0).save(1, {"x": torch.full((4,), value)})
    run_ranks(of_its_own, 3, args=(tmp_path, of_ranks))


def fails(directory: Path, kind: str) -> None:
    """Rank 1, which reads for ranks 1 and 2, cannot."""
    rank = int(os.environ["RANK"])
    nodes(0, 1, 1)

    def fail() -> None:
        if rank == 1 and kind == "stale":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if rank == 1 and kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1 and kind == "damaged":
        path = directory / "step-00000002" / "state.json"
        FileStorage.open = lambda self, key: FileStream(  # type: ignore[method-assign]
            directory.parent / "damaged.json" if key.endswith("state.json") else self.directory / key
        )
        raw = bytearray(path.read_bytes())
        raw[7] ^= 1
        (directory.parent / "damaged.json").write_bytes(raw)
        storage = FileStorage(directory)
    else:
        storage = Counting(directory, fail)
    manager, training = manage(storage, attempt=1), Training(seed=4)
    before = training.weights()
    error = {"stale": UnavailableError, "damaged": CheckpointError, "killed": RuntimeError}[kind]
    started = time.monotonic()
    with pytest.raises(error) as caught:
        manager.load(2, training.state)
    assert time.monotonic() - started < TIMEOUT_S
    assert training.weights() == before
    if kind != "killed":
        assert ("on rank 1: " in str(caught.value)) == (rank != 1)
        assert "Stale" in str(caught.value) if kind == "stale" else "state.json: block 0" in str(caught.value)
        leave()
    (directory.parent / f"raised-{rank}").touch()


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["stale", "damaged", "killed"])
def test_what_a_reader_cannot_read_is_the_same_error_on_all_ranks_and_none_hangs(
    tmp_path: Path, kind: str
) -> None:
    directory = tmp_path / "run"
    run_ranks(save, 3, args=(directory,))
    if kind == "killed":
        with pytest.raises(RanksFailed, match="1 of 3 ranks failed") as caught:
            run_ranks(fails, 3, args=(directory, kind), after_failure_s=TIMEOUT_S)
        assert signal.SIGKILL.name in caught.value.tracebacks[1]
    else:
        run_ranks(fails, 3, args=(directory, kind))
        assert {path.name for path in tmp_path.glob("raised-*")} == {f"raised-{rank}" for rank in range(3)}


def fill(memory: SharedMemory, tensor: torch.Tensor) -> torch.Tensor:
    raw = memoryview(tensor.numpy().tobytes())
    at = 0

    def read_into(view: memoryview) -> None:
        nonlocal at
        view[:] = raw[at : at + len(view)]
        at += len(view)

    return memory.fill([(tensor.dtype, tuple(tensor.shape))], read_into)[0]


def test_shared_memory_is_sealed_and_what_is_written_to_a_tensor_stays_private() -> None:
    wanted = torch.arange(300_000, dtype=torch.int64)  # more than one block
    memory = SharedMemory(wanted.nbytes, 1)
    tensor = fill(memory, wanted)
    offer: Any = memory.offer({"x": tensor}, {"facts": 1})
    taken, facts = open_offer(offer)
    assert torch.equal(taken["x"], wanted)
    assert facts == {"facts": 1}
    tensor[0] = 7
    taken["x"][1] = 8
    assert open_offer(offer)[0]["x"][:2].tolist() == [0, 1]
    with pytest.raises(PermissionError):
        os.pwrite(offer[1], b"x", 0)
    with pytest.raises(OSError, match="another one than"):
        open_offer([*offer[:4], "0" * 32])
    memory.close()
    with pytest.raises(OSError):
        open_offer(offer)
    assert torch.equal(taken["x"][2:], wanted[2:])


def test_memory_that_can_still_be_changed_is_not_taken() -> None:
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    with pytest.raises(OSError, match="not sealed"):
        open_offer([os.getpid(), descriptor, 1, 1, "0" * 32])
    os.close(descriptor)


def test_what_was_read_of_a_damaged_checkpoint_is_given_back_at_once(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    for step in (1, 2):
        manager.save(step, Training(seed=step).state)
    path = max((tmp_path / "step-00000002").glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    memories: list[weakref.ref[SharedMemory]] = []

    def memory_for(manifest: Manifest) -> SharedMemory:
        memory = SharedMemory(sum(entry.bytes for entry in manifest.files), len(manifest.tensors))
        memories.append(weakref.ref(memory))
        return memory

    gc.disable()
    try:
        loaded = load_newest(FileStorage(tmp_path), read_only=True, memory_for=memory_for)
        assert [memory() is None for memory in memories] == [True, False]
    finally:
        gc.enable()
    assert loaded is not None
    assert loaded.name == "step-00000001"
