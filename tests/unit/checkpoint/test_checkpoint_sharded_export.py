"""An export as several safetensors files with an index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_cases import Tied, Training, manager

import dist_train as dt
from dist_train.checkpoint.weights.convert import export_weights
from dist_train.checkpoint.weights.safetensors_index import INDEX
from dist_train.checkpoint.weights.sharded_output import split
from dist_train.errors import CheckpointError, CheckpointWriteError


@pytest.fixture
def trained() -> Training:
    training = Training()
    training.train(2)
    return training


def test_the_files_and_the_index_hold_the_model(tmp_path: Path, trained: Training) -> None:
    saved, out = manager(tmp_path / "ours").save(2, trained.state), tmp_path / "new" / "out"
    done = export_weights(saved.path, out, max_shard_bytes=100)
    index = json.loads((out / INDEX).read_text())
    files = sorted(path.name for path in out.iterdir() if path.name != INDEX)
    assert files == [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    assert sorted(set(index["weight_map"].values())) == files
    found = {}
    for file in files:
        inside = safetensors.torch.load_file(out / file)
        assert {index["weight_map"][name] for name in inside} == {file}
        # The largest tensor is 96 bytes; none is larger than a file may be.
        assert sum(tensor.nbytes for tensor in inside.values()) <= 100
        found |= inside
    wanted = {name: tensor for name, tensor in trained.model.state_dict().items() if name != "head.weight"}
    assert found.keys() == wanted.keys() == index["weight_map"].keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert index["metadata"] == {
        "total_size": sum(t.nbytes for t in found.values()),
        "head.weight": "emb.weight",
    }
    assert (done["weights_hash"], done["path"]) == (saved.weights_hash, str(out))
    assert done["bytes"] == sum(path.stat().st_size for path in out.iterdir())
    # As another reader of this format reads it.
    theirs = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(out)), no_dist=True)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in wanted.items())
    target = Tied()
    dt.checkpoint.load_model(out, target)
    assert torch.equal(target.head.weight, trained.model.head.weight)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_tensors_go_in_their_order_into_parts_of_at_most_so_many_bytes() -> None:
    tensors = {name: torch.zeros(count) for name, count in {"a": 1, "b": 2, "c": 9, "d": 1, "e": 0}.items()}
    assert [list(part) for part in split(tensors, 12)] == [["a", "b"], ["c"], ["d", "e"]]
    assert [list(part) for part in split(tensors, 1)] == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert [list(part) for part in split(tensors, 10**9)] == [["a", "b", "c", "d", "e"]]
    assert split({}, 1) == [{}]


def test_nothing_is_replaced_not_even_what_came_meanwhile(
    tmp_path: Path, trained: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, out = manager(tmp_path / "ours").save(2, trained.state), tmp_path / "new" / "out"
    out.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"exists already[\s\S]*--out"):
        export_weights(saved.path, out, max_shard_bytes=100)
    out.rmdir()
    rename = os.rename

    def beaten_to_it(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "theirs").write_text("theirs")
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten_to_it)
    with pytest.raises(CheckpointError, match="exists already"):
        export_weights(saved.path, out, max_shard_bytes=100)
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_file_that_reads_back_otherwise_gets_no_name(
    tmp_path: Path, trained: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, fsync = manager(tmp_path / "ours").save(2, trained.state), os.fsync

    def changes_a_bit(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name.name.startswith("model-00002"):
            raw = bytearray(name.read_bytes())
            raw[-1] ^= 1
            name.write_bytes(raw)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", changes_a_bit)
    with pytest.raises(CheckpointWriteError, match="was written and read back, and is not the same"):
        export_weights(saved.path, tmp_path / "new" / "out", max_shard_bytes=100)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, fill_disk: Callable[[], None]) -> None:
    torch.save({"w": torch.zeros(100, 100), "b": torch.zeros(2)}, tmp_path / "w.pt")
    fill_disk()
    with pytest.raises(CheckpointWriteError, match=r"could not be written: File too large"):
        export_weights(tmp_path / "w.pt", tmp_path / "new" / "out", max_shard_bytes=100)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("of_ours", [True, False])
def test_what_cannot_be_read_is_no_error_of_the_target(
    tmp_path: Path, trained: Training, monkeypatch: pytest.MonkeyPatch, of_ours: bool
) -> None:
    path = manager(tmp_path / "ours").save(2, trained.state).path
    export_weights(path, tmp_path / "theirs", max_shard_bytes=100)
    source = path if of_ours else tmp_path / "theirs"
    file = source / ("model.safetensors" if of_ours else "model-00001-of-00002.safetensors")
    removed = remove_when_begun(file, monkeypatch)
    with pytest.raises(CheckpointError, match=rf"{file.name} could not be read: No such file") as found:
        export_weights(source, tmp_path / "again", max_shard_bytes=100)
    assert removed
    assert not isinstance(found.value, CheckpointWriteError)
    assert not (tmp_path / "again").exists()


def remove_when_begun(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Remove a file as soon as the target is begun."""
    removed: list[Path] = []
    mkdir = os.mkdir

    def make_then_remove(path: Path, *words: object) -> None:
        mkdir(path, *words)  # type: ignore[arg-type]
        if not removed:
            removed.append(file)
            file.unlink()

    monkeypatch.setattr(os, "mkdir", make_then_remove)
    return removed
