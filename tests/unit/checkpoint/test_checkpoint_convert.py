"""Weights from one format to another: what plain torch and safetensors then open, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from checkpoint_cases import Tied, Training, manager
from torch import nn

import dist_train as dt
from dist_train.checkpoint.format.boxes import Box
from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.store.sharded_reader import ShardedReader
from dist_train.checkpoint.weights.convert import export_weights, import_weights
from dist_train.checkpoint.weights.import_weights import open_weights
from dist_train.errors import CheckpointError, CheckpointWriteError


@pytest.fixture
def trained() -> Training:
    training = Training()
    training.train(2)
    return training


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_an_export_opens_in_plain_torch_with_weights_only(tmp_path: Path, trained: Training) -> None:
    saved = manager(tmp_path / "ours").save(2, trained.state)
    done = export_weights(saved.path, tmp_path / "out" / "model.pt")
    plain = Tied()
    plain.load_state_dict(torch.load(tmp_path / "out" / "model.pt", weights_only=True))
    assert values(plain) == values(trained.model)
    assert done["weights_hash"] == saved.weights_hash
    assert done["left"] == ["loader", "optimizer", "schedule"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.pt"]


def test_an_export_as_safetensors(tmp_path: Path, trained: Training) -> None:
    saved = manager(tmp_path / "ours").save(2, trained.state)
    export_weights(saved.path, tmp_path / "m.safetensors")
    theirs, ours = Tied(), Tied()
    safetensors.torch.load_model(theirs, tmp_path / "m.safetensors")
    dt.checkpoint.load_model(tmp_path / "m.safetensors", ours)
    assert values(theirs) == values(ours) == values(trained.model)


def test_of_a_folder_the_newest_whole_one_and_nothing_is_moved(tmp_path: Path, trained: Training) -> None:
    manage = manager(tmp_path / "ours")
    first, second = (manage.save(step, trained.state) for step in (1, 2))
    (second.path / "model.safetensors").write_bytes(b"")
    before = sorted(path.name for path in (tmp_path / "ours").iterdir())
    done = export_weights(tmp_path / "ours", tmp_path / "m.pt")
    assert done["source"] == str(first.path)
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == before


def test_an_import_drops_what_all_names_share_and_says_what_it_left(
    tmp_path: Path, trained: Training
) -> None:
    wrapped = {f"module._orig_mod.{name}": t for name, t in trained.model.state_dict().items()}
    torch.save({"state_dict": wrapped, "epoch": 3, "optimizer": {}}, tmp_path / "old.pth")
    done = import_weights(tmp_path / "old.pth", tmp_path / "new.safetensors")
    assert done["dropped"] == f"dropped leading 'module._orig_mod.' from {len(wrapped)} names"
    assert (done["origin"], done["left"]) == ("torch.save, entry 'state_dict'", ["epoch", "optimizer"])
    fresh = Tied()
    safetensors.torch.load_model(fresh, tmp_path / "new.safetensors")
    assert values(fresh) == values(trained.model)
    # Tied weights are one in the file, as in the model.
    assert len(safetensors.torch.load_file(tmp_path / "new.safetensors")) == len(wrapped) - 1
    kept = import_weights(tmp_path / "old.pth", tmp_path / "kept.safetensors", keep_names=True)
    assert kept["dropped"] is None
    assert all(name.startswith("module.") for name in safetensors.torch.load_file(kept["path"]))


def test_views_of_one_memory_are_written_for_what_they_show(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    torch.save({"a": whole[:3], "b": whole[1:5].reshape(2, 2).T}, tmp_path / "views.pt")
    import_weights(tmp_path / "views.pt", tmp_path / "new.safetensors")
    found = safetensors.torch.load_file(tmp_path / "new.safetensors")
    assert (found["a"].tolist(), found["b"].tolist()) == ([0, 1, 2], [[1, 3], [2, 4]])


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_nothing_is_written_over_not_even_what_came_meanwhile(
    tmp_path: Path, trained: Training, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    saved, target = manager(tmp_path / "ours").save(2, trained.state), tmp_path / "out" / name
    target.parent.mkdir()
    target.write_text("mine")
    with pytest.raises(CheckpointError, match=r"exists already[\s\S]*--out"):
        export_weights(saved.path, target)
    target.unlink()
    link = os.link

    def beaten_to_it(*words: object) -> None:
        target.write_text("theirs")
        link(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", beaten_to_it)
    with pytest.raises(CheckpointError, match="exists already"):
        export_weights(saved.path, target)
    assert target.read_text() == "theirs"
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_a_file_that_reads_back_otherwise_gets_no_name(
    tmp_path: Path, trained: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = manager(tmp_path / "ours").save(2, trained.state)
    fsync = os.fsync

    def changes_a_bit(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name.suffix == ".safetensors":
            raw = bytearray(name.read_bytes())
            raw[-1] ^= 1
            name.write_bytes(raw)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", changes_a_bit)
    with pytest.raises(CheckpointWriteError, match="was written and read back, and is not the same"):
        export_weights(saved.path, tmp_path / "out" / "m.safetensors")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_safetensors_cannot_hold_is_named(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2), "w_extra_state": {"seen": 1}}, tmp_path / "extra.pt")
    with pytest.raises(CheckpointError, match=r"'w_extra_state' in .* is no tensor"):
        import_weights(tmp_path / "extra.pt", tmp_path / "new.safetensors")
    torch.save({"w": torch.zeros(2, 2).to_sparse()}, tmp_path / "sparse.pt")
    with pytest.raises(CheckpointError, match="'w' is a Tensor"):
        import_weights(tmp_path / "sparse.pt", tmp_path / "new.safetensors")
    # As a file of torch's own it can be held.
    done = export_weights(tmp_path / "extra.pt", tmp_path / "again.pt")
    assert torch.load(done["path"], weights_only=True)["w_extra_state"] == {"seen": 1}


class Own(nn.Module):
    """Its only part is really called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


def test_an_import_of_a_checkpoint_of_ours_keeps_the_model_s_own_names(tmp_path: Path) -> None:
    source, target = Own(), Own()
    path = manager(tmp_path / "ours").save(1, {"model": source}).path
    assert import_weights(path, tmp_path / "new.safetensors")["dropped"] is None
    dt.checkpoint.load_model(tmp_path / "new.safetensors", target)
    assert values(source) == values(target)


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_a_full_disk_is_74_and_leaves_nothing(
    tmp_path: Path, fill_disk: Callable[[], None], name: str
) -> None:
    torch.save({"w": torch.zeros(100, 100)}, tmp_path / "w.pt")
    fill_disk()
    with pytest.raises(CheckpointWriteError, match=r"could not be written: File too large") as full:
        export_weights(tmp_path / "w.pt", tmp_path / "out" / name)
    assert full.value.exit_code == 74
    assert list((tmp_path / "out").iterdir()) == []


GOLDEN = Path(__file__).parent


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_exported_is_compared_with_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    source = GOLDEN / f"golden_v{version}" / "step-00000007"
    done = export_weights(source, tmp_path / "whole.safetensors")
    assert done["weights_hash"] == weights_hash(open_weights(source).tensors)
    read = ShardedReader.read

    def other_values(reader: ShardedReader, key: str, wanted: Box | None = None) -> torch.Tensor:
        found = read(reader, key, wanted)
        return found + 1 if key == "model/gain" else found

    monkeypatch.setattr(ShardedReader, "read", other_values)
    named = r"'gain' has another digest" if version == 2 else ""
    with pytest.raises(CheckpointError, match=rf"not those of its manifest's weights_hash[\s\S]*{named}"):
        export_weights(source, tmp_path / "other.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.safetensors"]
