"""Weights piece by piece: any box of any format equals the tensor's, and the hash does not know the cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_cases import manager
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat

from dist_train.checkpoint.format.boxes import Box, tiling_fault
from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights import byte_pieces
from dist_train.checkpoint.weights.byte_pieces import hash_of_weights, row_boxes
from dist_train.checkpoint.weights.convert import export_weights
from dist_train.checkpoint.weights.import_weights import open_weights
from dist_train.checkpoint.weights.weight_tensors import WidenedReader
from dist_train.errors import CheckpointError


class Shapes(nn.Module):
    """Tensors of every kind of shape; two of them tied."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, shape in {"a": (5, 3, 2), "b": (7,), "c": (), "d": (1, 40), "e": (0, 3)}.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.f = self.a
        self.register_buffer("g", torch.randn(3, 2, dtype=torch.complex128))
        self.register_buffer("h", torch.tensor([[True, False]] * 3))


def as_checkpoint(folder: Path) -> Path:
    return manager(folder).save(1, {"model": Shapes()}).path


def as_safetensors(folder: Path) -> Path:
    return Path(export_weights(as_checkpoint(folder / "ours"), folder / "w.safetensors")["path"])


def as_dcp(folder: Path) -> Path:
    dcp.save(Shapes().state_dict(), checkpoint_id=folder, no_dist=True)
    return folder


WRITERS = (as_checkpoint, as_safetensors, as_dcp)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("piece", [1, 24, 100, 8 << 20])
def test_the_hash_does_not_depend_on_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path], piece: int
) -> None:
    monkeypatch.setattr(byte_pieces, "PIECE_BYTES", piece)
    wanted = Shapes().state_dict()
    found = open_weights(write(tmp_path / "made")).tensors
    assert hash_of_weights(found) == weights_hash(wanted)
    assert hash_of_weights(found, version=1) == weights_hash(wanted, version=1)
    done = export_weights(tmp_path / "made", tmp_path / "again.safetensors") if write is as_dcp else None
    assert done is None or done["weights_hash"] == weights_hash(wanted)


@pytest.mark.parametrize("write", WRITERS)
def test_any_box_is_that_part_of_the_tensor(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    stored = open_weights(write(tmp_path / "made")).tensors.stored["a"]
    assert isinstance(stored, StoredTensor)
    whole = Shapes().a.detach()
    wide = StoredTensor(WidenedReader(stored, torch.float64), "a")
    ranges = [[(b, e) for b in range(n) for e in range(b + 1, n + 1)] for n in whole.shape]
    for ends in itertools.product(*ranges):
        box = Box(tuple(b for b, _ in ends), tuple(e - b for b, e in ends))
        part = whole[tuple(slice(b, e) for b, e in ends)]
        assert torch.equal(stored.read(box), part)
        assert torch.equal(wide.read(box), part.double())


@pytest.mark.parametrize("shape", [(5, 3), (1,), (9, 1), (4, 0), (), (2, 3, 4)])
def test_rows_make_the_tensor_whole_and_are_no_larger_than_a_piece(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    for piece in (1, 8, 30, 1000):
        monkeypatch.setattr(byte_pieces, "PIECE_BYTES", piece)
        boxes = list(row_boxes(shape, 4))
        assert tiling_fault(shape, boxes) is None
        assert all(box.elements * 4 <= piece or box.shape[:1] in ((1,), ()) for box in boxes)


def test_a_safetensors_file_of_dcp_that_holds_another_chunk_is_named(tmp_path: Path) -> None:
    kind = SerializationFormat.SAFETENSORS
    writer = FileSystemWriter(tmp_path, serialization_format=kind)
    dcp.save({"w": torch.randn(4, 2), "n": 1}, storage_writer=writer, no_dist=True)
    assert open_weights(tmp_path).tensors["w"].shape == (4, 2)
    path = tmp_path / "__0_0.distcp"
    raw = path.read_bytes()
    assert raw.count(b"[0, 0]") == 1
    path.write_bytes(raw.replace(b"[0, 0]", b"[4, 0]"))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp .*another chunk is there, from \[4, 0\] on"):
        open_weights(tmp_path).tensors["w"]
    path.write_bytes(raw.replace(b'"w":{', b'"v":{'))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp .*tensor 'w' .*it is not there"):
        open_weights(tmp_path).tensors["w"]


def test_of_tied_weights_in_a_file_one_is_read(tmp_path: Path) -> None:
    found = open_weights(as_safetensors(tmp_path)).tensors
    assert found.aliases() == {"f": "a"}
    read = found.in_memory()
    assert read["f"] is read["a"]
