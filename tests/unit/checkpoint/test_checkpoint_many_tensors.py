"""Many small tensors and hashes in other threads: the same bytes, less work, and every fault still found."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest
import torch
from checkpoint_cases import Training, manager, manifest_of
from checkpoint_places import Place

from dist_train.checkpoint.format import hash_threads as threads_module
from dist_train.checkpoint.format.blocks import BLOCK_BYTES, chunks_of, hash_bytes, hash_views
from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.checkpoint.format.tensor_bytes import host, view_bytes
from dist_train.checkpoint.store import checkpoint_names, verify
from dist_train.checkpoint.store.checkpoint_names import read_manifest_head
from dist_train.checkpoint.store.verify import verify_stored
from dist_train.jobs.machine import Usable


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cores, and nothing is too small for a thread."""
    monkeypatch.setattr(threads_module, "WORTH_BYTES", 0)
    monkeypatch.setattr(threads_module, "usable_cores", lambda: Usable(3, 3, "a test's"))


def large() -> torch.Tensor:
    """Some blocks, and a part of one."""
    return torch.arange(5 * BLOCK_BYTES // 4 + 100, dtype=torch.int32)


def test_a_save_parses_no_manifest_that_it_knows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    training, manage = Training(), manager(place.location, keep_last=3)
    for step in (1, 2, 3):
        manage.save(step, training.state)
    parsed: list[str] = []
    parse_state = verify._parse_reserved
    monkeypatch.setattr(
        checkpoint_names, "parse_manifest", lambda raw: parsed.append("manifest") or parse_manifest(raw)
    )
    monkeypatch.setattr(verify, "_parse_reserved", lambda raw: parsed.append("state") or parse_state(raw))
    manage.save(4, training.state)
    assert manage.steps() == [2, 3, 4]
    assert parsed == []


def test_what_another_process_has_changed_is_parsed_again(place: Place) -> None:
    training, manage = Training(), manager(place.location, keep_last=3)
    for step in (1, 2):
        manage.save(step, training.state)
    known = read_manifest_head(place.storage, "step-00000002")
    assert known.self_hash == place.manifest(2).self_hash
    place.flip("step-00000002/manifest.json", 200, 1)
    with pytest.raises(DamagedCheckpoint):
        read_manifest_head(place.storage, "step-00000002")
    # Neither usable nor counted: the two that are whole stay, by keep_last at least two.
    manager(place.location, attempt=1, keep_last=2).save(3, training.state)
    assert manage.steps() == [1, 2, 3]


def test_a_manifest_is_canonical_json_and_reads_as_what_was_written(tmp_path: Path) -> None:
    manager(tmp_path).save(1, Training().state)
    raw = (tmp_path / "step-00000001" / "manifest.json").read_bytes()
    manifest = manifest_of(tmp_path, 1)
    assert raw == dump_canonical(load_canonical(raw)) == manifest.to_bytes()
    assert manifest.sealed_bytes() == (manifest, raw)


def test_a_name_that_looks_like_the_hash_of_a_manifest_is_only_a_name(tmp_path: Path) -> None:
    state = {"model": torch.nn.Linear(1, 1), "notes": {',"self_hash":"' + "0" * 32 + '",': torch.ones(1)}}
    manage = manager(tmp_path)
    manage.save(1, state)
    assert manage.verify(1).ok
    assert manage.load_latest(state) is not None


def test_the_bytes_of_many_tensors_are_those_of_each() -> None:
    dtypes = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    )
    tensors = {
        f"{dtype}/{number}": torch.randint(0, 2, shape).to(dtype)
        for dtype in (*dtypes, torch.float8_e5m2, torch.uint16)
        for number, shape in enumerate([(), (3,), (2, 2), (0,), (100, 100)])
    }
    tensors["nan"] = torch.tensor([0x7FC00123, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    tensors["turned"] = torch.arange(12.0).reshape(3, 4).t()
    tensors["negative"] = torch.view_as_complex(torch.ones(3, 2)).conj().imag
    views = byte_views(tensors)
    assert views.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert bytes(views[name]) == bytes(view_bytes(host(tensor))), name


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 25])
def test_chunks_hold_all_bytes_in_order(size: int) -> None:
    raw = bytes(range(size))
    views = [memoryview(raw)[:3], memoryview(raw)[3:3], memoryview(raw)[3:20], memoryview(raw)[20:]]
    chunks = [b"".join(chunk) for chunk in chunks_of(views, 8)]
    assert chunks == [raw[start : start + 8] for start in range(0, size, 8)]
    assert hash_views(views) == hash_bytes(raw)


@pytest.mark.usefixtures("threaded")
def test_with_threads_the_same_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    state = {**training.state, "big": large()}
    manager(tmp_path / "threads").save(1, state)
    monkeypatch.setattr(threads_module, "WORTH_BYTES", 1 << 60)
    manager(tmp_path / "plain").save(1, state)
    one, other = (manifest_of(tmp_path / name, 1) for name in ("threads", "plain"))
    assert one.model_copy(update={"created_at": "", "self_hash": ""}) == other.model_copy(
        update={"created_at": "", "self_hash": ""}
    )
    for file in one.files:
        written = [
            (tmp_path / name / "step-00000001" / file.name).read_bytes() for name in ("threads", "plain")
        ]
        assert written[0] == written[1]
        assert hash_bytes(written[0]) == file.xxh3_128


@pytest.mark.usefixtures("threaded")
@pytest.mark.parametrize("block", [0, 3, 4, 5])
def test_with_threads_a_flipped_bit_is_found_in_its_block(tmp_path: Path, block: int) -> None:
    training = Training()
    state = {**training.state, "big": large()}
    manage = manager(tmp_path)
    for step in (1, 2):
        manage.save(step, state)
    path = tmp_path / "step-00000002" / "big.safetensors"
    raw = bytearray(path.read_bytes())
    raw[min(block * BLOCK_BYTES + 4000, len(raw) - 1)] ^= 1
    path.write_bytes(raw)
    problem = rf"big\.safetensors: block {block} \(bytes {block * BLOCK_BYTES} to "
    problems = verify_stored(manage.storage, "step-00000002").problems
    assert [bool(re.search(problem, line)) for line in problems] == [True]
    restored = manager(tmp_path, attempt=1).load_latest({**training.state, "big": torch.zeros_like(large())})
    assert restored is not None
    assert restored.step == 1


@pytest.mark.usefixtures("threaded")
def test_with_threads_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    manager(tmp_path).save(1, {"big": large()})
    path = tmp_path / "step-00000001" / "big.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(Exception, match=r"big\.safetensors has \d+ bytes; the manifest says"):
        manager(tmp_path).load(1, {"big": large()})


def test_where_no_thread_can_start_the_work_is_done_by_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    with ThreadPoolExecutor(2) as pool:
        threads = threads_module.HashThreads(pool, 2)
        values = [threads.start(lambda number=number: done.append(number) or number) for number in range(3)]
        assert [value() for value in values] == [0, 1, 2]
    assert done == [0, 1, 2]


def test_an_error_in_a_thread_is_raised_where_the_value_is_asked_for() -> None:
    with ThreadPoolExecutor(1) as pool:
        value = threads_module.HashThreads(pool, 1).start(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            value()


AT_EXIT = """
import atexit, sys, torch
from dist_train.checkpoint import CheckpointManager
from dist_train.distributed.control_group import Control
manager, model = CheckpointManager(sys.argv[1], control=Control()), torch.nn.Linear(2500, 2000)
atexit.register(lambda: print("loaded", manager.load_latest({"model": model}).step))
atexit.register(lambda: print("saved", manager.save(1, {"model": model}).step))
"""


def test_an_exit_function_saves_and_loads(tmp_path: Path) -> None:
    """After the end of the main thread Python starts no thread of a pool; the state is above 16 MiB."""
    words = [sys.executable, "-c", AT_EXIT, str(tmp_path / "checkpoints")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["saved 1", "loaded 1"], done.stderr
