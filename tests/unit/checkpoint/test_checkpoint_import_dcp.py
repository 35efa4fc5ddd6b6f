"""Directories of torch.distributed.checkpoint: opened to the bit, and nothing in them is run."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_cases import Tied
from torch import nn
from torch.distributed._shard.sharded_tensor import metadata as sharded_metadata
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat, _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

import dist_train as dt
from dist_train.checkpoint.weights.convert import export_weights, import_weights
from dist_train.checkpoint.weights.dcp_metadata import METADATA
from dist_train.checkpoint.weights.import_weights import open_weights
from dist_train.checkpoint.weights.plain_pickle import UnknownName, read_pickle
from dist_train.errors import CheckpointError
from dist_train.testing.ranks import run_ranks

FILE = "__0_0.distcp"


class Uneven(nn.Module):
    """Parts of unlike sizes, an empty one on rank 1, a buffer, tied and frozen parameters, narrow numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.half = nn.Linear(3, 7, bias=False, dtype=torch.bfloat16)
        self.one = nn.Parameter(torch.randn(1, 4), requires_grad=False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight


def _save_spread(folder: Path) -> dict[str, torch.Tensor]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    dt.init()
    torch.manual_seed(3)
    model = Uneven()
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    state = model.state_dict()
    dcp.save(
        {"model": state, "optimizer": optimizer.state_dict(), "epoch": 4}, checkpoint_id=folder / "nested"
    )
    dcp.save(
        state, checkpoint_id=str(folder / "flat"), planner=dcp.DefaultSavePlanner(flatten_state_dict=False)
    )
    untied = {name: tensor for name, tensor in state.items() if name != "head.weight"}
    kind = SerializationFormat.SAFETENSORS
    dcp.save({"m": untied, "n": 1}, storage_writer=FileSystemWriter(folder / "st", serialization_format=kind))
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state.items()}


@pytest.mark.multiprocess
@pytest.mark.proves(
    "Others' weights are opened without running code; only leading prefixes go; a flipped bit is noticed",
    limits="torch.save, safetensors and torch.distributed.checkpoint",
)
def test_what_two_ranks_saved_of_a_sharded_model_is_read_to_the_bit(tmp_path: Path) -> None:
    wanted = run_ranks(_save_spread, 2, 120, args=(tmp_path,))[0]
    places = {"nested": "entry 'model'", "flat": "torch.distributed.checkpoint", "st": "entry 'm'"}
    for name, origin in places.items():
        target = Uneven()
        found = open_weights(tmp_path / name)
        assert origin in found.origin
        dt.checkpoint.load_model(tmp_path / name, target)
        assert all(torch.equal(wanted[key], tensor) for key, tensor in target.state_dict().items())
        done = import_weights(tmp_path / name, tmp_path / f"{name}.safetensors")
        read = safetensors.torch.load_file(done["path"])
        assert all(torch.equal(wanted[key], tensor) for key, tensor in read.items())
        assert {key: tensor.dtype for key, tensor in read.items()} == {k: wanted[k].dtype for k in read}
    assert open_weights(tmp_path / "nested").unused == ("optimizer", "epoch")


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """One process, without a group."""
    torch.manual_seed(0)
    state = {"w": torch.randn(4, 3), "b": torch.randn(3)}
    dcp.save({"model": state, "epoch": 3}, checkpoint_id=folder, no_dist=True)
    return state


def rewrite(folder: Path, change: Callable[[Metadata], Any]) -> None:
    path = folder / METADATA
    metadata = pickle.loads(path.read_bytes())
    metadata = change(metadata) or metadata
    path.write_bytes(pickle.dumps(metadata))


def test_names_of_wrappers_go_and_the_metadata_file_may_be_named_itself(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    wrapped = {f"module.{name}": tensor for name, tensor in source.state_dict().items()}
    dcp.save({"state_dict": wrapped}, checkpoint_id=tmp_path / "d", no_dist=True)
    done = import_weights(tmp_path / "d" / METADATA, tmp_path / "new.safetensors")
    assert done["dropped"] == f"dropped leading 'module.' from {len(wrapped)} names"
    dt.checkpoint.load_model(tmp_path / "d", target)
    assert torch.equal(target.emb.weight, source.emb.weight)
    with pytest.raises(CheckpointError, match=r"no entry 'ema'\n.*it has 'state_dict'"):
        open_weights(tmp_path / "d", "ema")


def test_what_is_no_tensor_comes_along_and_may_not_need_pickle(tmp_path: Path) -> None:
    state = {"w": torch.zeros(2), "w_extra_state": {"seen": 1}}
    dcp.save(state, checkpoint_id=tmp_path / "d", no_dist=True, planner=_as_it_is())
    assert export_weights(tmp_path / "d", tmp_path / "w.pt")["tensors"] == 1
    assert torch.load(tmp_path / "w.pt", weights_only=True)["w_extra_state"] == {"seen": 1}
    dcp.save({**state, "w_extra_state": Trap(tmp_path)}, checkpoint_id=tmp_path / "t", no_dist=True)
    with pytest.raises(CheckpointError, match=rf"{FILE} needs pickle \(.*mkdir\)"):
        open_weights(tmp_path / "t")


def _as_it_is() -> dcp.DefaultSavePlanner:
    return dcp.DefaultSavePlanner(flatten_state_dict=False)


class Trap:
    """Unpickling it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.folder / "sprung"),))


def place(metadata: Metadata, key: str = "model.w") -> _StorageInfo:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == key)


def with_chunks(*boxes: tuple[list[int], list[int]]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        chunks = [ChunkStorageMetadata(torch.Size(offset), torch.Size(size)) for offset, size in boxes]
        metadata.state_dict_metadata["model.w"].chunks = chunks
        for offset, _size in boxes:
            metadata.storage_data[MetadataIndex("model.w", offset)] = place(metadata)

    return change


def with_place(**values: Any) -> Callable[[Metadata], None]:
    return lambda metadata: place(metadata).__dict__.update(values)


def no_place(metadata: Metadata) -> None:
    metadata.storage_data = {i: info for i, info in metadata.storage_data.items() if i.fqn != "model.w"}


def two_in_one_place(metadata: Metadata) -> None:
    metadata.planner_data["model.b"] = ("model", "w")


def one_in_another(metadata: Metadata) -> None:
    metadata.planner_data["model.b"] = ("model", "w", "b")


def of_size(*size: int) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.state_dict_metadata["model.w"].size = torch.Size(size)
        with_chunks(([0] * len(size), list(size)))(metadata)

    return change


def set_to(**values: Any) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.__dict__.update(values)


METADATA_CASES: dict[str, tuple[Callable[[Metadata], Any], str]] = {
    "chunks overlap": (
        with_chunks(([0, 0], [3, 3]), ([2, 0], [2, 3])),
        r"'model\.w' do not make it whole.*over",
    ),
    "a chunk is missing": (with_chunks(([0, 0], [3, 3])), r"3 of its 12 elements are in no part"),
    "a chunk twice": (with_chunks(([0, 0], [4, 3]), ([0, 0], [4, 3])), r"do not make it whole.*overlap"),
    "a chunk outside": (with_chunks(([0, 0], [4, 3]), ([4, 0], [1, 3])), r"is not a part of it"),
    "a chunk of other dimensions": (with_chunks(([0], [12])), r"another number of dimensions"),
    "no place": (no_place, r"no file is named for 'model\.w' from \[0, 0\] on"),
    "an absolute path": (
        with_place(relative_path="/etc/passwd"),
        r"'/etc/passwd', which is no plain file name",
    ),
    "a path upwards": (
        with_place(relative_path="../x.distcp"),
        r"'\.\./x\.distcp', which is no plain file name",
    ),
    "a path with a zero byte": (with_place(relative_path="a\0b"), r"which is no plain file name"),
    "no name": (with_place(relative_path=""), r"which is no plain file name"),
    "a name that is no text": (with_place(relative_path=3), r"which is no plain file name"),
    "a negative offset": (with_place(offset=-1), r"where a count must be"),
    "an offset beyond all": (with_place(offset=2**80), r"where a count must be"),
    "an offset that is true": (with_place(offset=True), r"where a count must be"),
    "compressed": (with_place(transform_descriptors=["stream.zstd/1"]), r"compressed or encrypted"),
    "a later version": (set_to(version="2.0.0"), r"of a later version"),
    "no storage": (set_to(storage_data=None), r"its storage_data is no dict"),
    "no state dict": (set_to(state_dict_metadata=[1]), r"its state_dict_metadata is no dict"),
    "two in one place": (two_in_one_place, r"two entries are to stand in one place"),
    "one in another": (one_in_another, r"two entries are to stand in one place"),
    "no metadata": (lambda _: {"a": 1}, r"there is no Metadata"),
}
FILE_CASES: dict[str, tuple[Callable[[Metadata], Any], str]] = {
    "a file that is not there": (with_place(relative_path="gone.distcp"), r"gone\.distcp is missing"),
    "more bytes than the file has": (with_place(length=10**9), r"is cut short: it has \d+ bytes"),
    "another place in the file": (with_place(offset=7), r"(is not a safetensors|too few)"),
    "few bytes": (with_place(length=20), r"20 bytes are too few for \[4, 3\]"),
    "larger than its bytes": (of_size(2**20, 2**20), r"bytes are too few for"),
    "of another shape": (of_size(3, 4), r"it is float32 \[4, 3\], not float32 \[3, 4\]"),
    "another item's place": (lambda m: with_place(**place(m, "epoch").__dict__)(m), r"it is a int"),
}


def read_all(folder: Path) -> None:
    open_weights(folder).tensors.in_memory()


def test_metadata_of_older_versions_of_torch(tmp_path: Path) -> None:
    """The properties of tensors had another module, directories no save id, places no list of extensions."""
    state = saved(tmp_path)

    def older(metadata: Metadata) -> None:
        for entry in metadata.state_dict_metadata.values():
            if hasattr(entry, "properties"):
                entry.properties = sharded_metadata.TensorProperties(dtype=entry.properties.dtype)
        metadata.storage_meta = metadata.version = None

    rewrite(tmp_path, older)
    assert b"sharded_tensor.metadata" in (tmp_path / METADATA).read_bytes()
    assert torch.equal(open_weights(tmp_path).tensors["w"], state["w"])


@pytest.mark.parametrize("case", METADATA_CASES)
def test_metadata_that_make_no_sense_are_named(tmp_path: Path, case: str) -> None:
    saved(tmp_path)
    change, words = METADATA_CASES[case]
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/{METADATA}[\s\S]*{words}"):
        read_all(tmp_path)


@pytest.mark.parametrize("case", FILE_CASES)
def test_files_that_are_not_as_the_metadata_say_are_named(tmp_path: Path, case: str) -> None:
    saved(tmp_path)
    change, words = FILE_CASES[case]
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=words) as found:
        read_all(tmp_path)
    assert f"{tmp_path}/" in str(found.value)
    assert ".distcp" in str(found.value)


@pytest.mark.proves(
    "Others' weights are opened without running code; only leading prefixes go; a flipped bit is noticed",
    limits="torch.save, safetensors and torch.distributed.checkpoint",
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_metadata_that_name_code_are_refused_and_never_run(tmp_path: Path, protocol: int) -> None:
    saved(tmp_path)
    metadata = pickle.loads((tmp_path / METADATA).read_bytes())
    for trapped in ({**metadata.__dict__, "planner_data": Trap(tmp_path)}, Trap(tmp_path)):
        if isinstance(trapped, dict):
            metadata.__dict__.update(trapped)
        raw = pickle.dumps(metadata if isinstance(trapped, dict) else trapped, protocol=protocol)
        (tmp_path / METADATA).write_bytes(raw)
        with pytest.raises(CheckpointError, match=rf"{METADATA} names .*mkdir, which is none of the classes"):
            read_all(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_no_bytes_of_a_shard_are_run(tmp_path: Path) -> None:
    saved(tmp_path)
    raw = io.BytesIO()
    torch.save(Trap(tmp_path), raw)
    (tmp_path / "trap.distcp").write_bytes(raw.getvalue())
    rewrite(tmp_path, with_place(relative_path="trap.distcp", offset=0, length=len(raw.getvalue())))
    with pytest.raises(CheckpointError, match=r"trap\.distcp needs pickle \(.*mkdir\)"):
        read_all(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_flipped_bit_and_a_cut_file(tmp_path: Path) -> None:
    state = saved(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    at = whole.find(state["w"].numpy().tobytes())
    path.write_bytes(whole[: at + 5] + bytes([whole[at + 5] ^ 1]) + whole[at + 6 :])
    with pytest.raises(CheckpointError, match=rf"{FILE} is damaged: its record .* is not what was written"):
        read_all(tmp_path)
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=rf"{FILE} is cut short"):
        read_all(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{FILE} is missing"):
        read_all(tmp_path)


def test_no_flipped_bit_of_the_metadata_gives_an_error_of_another_kind(tmp_path: Path) -> None:
    saved(tmp_path)
    whole = (tmp_path / METADATA).read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        (tmp_path / METADATA).write_bytes(whole[:at] + bytes([whole[at] ^ 0x21]) + whole[at + 1 :])
        try:
            read_all(tmp_path)
        except CheckpointError as error:
            refused += str(tmp_path) in str(error)
    assert refused > len(whole) // 6


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>",
        b"\x80\x02.",
        b"\x80\x02K\x01",
        b"\x80\x02)R.",
        b"\x80\x02K\x01K\x02b.",
        b"\x80\x02K\x01K\x02s.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02t.",
        b"\x80\x02h\x00.",
        b"\x80\x02K\x01r\xff\xff\xff\x7f.x" + b"(" * 10,
        b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b".",
        b"\x80\x02P0\n.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_what_is_no_plain_pickle_is_a_value_error(raw: bytes) -> None:
    try:
        assert read_pickle(raw, lambda _: True) == 1  # a memo of two thousand million places is none
    except ValueError:
        pass


def test_nothing_that_a_pickle_names_is_looked_up() -> None:
    with pytest.raises(UnknownName, match=r"it names no\.such\.module\.at_all"):
        read_pickle(b"\x80\x02cno.such.module\nat_all\n.", lambda _: False)
    found = read_pickle(b"\x80\x02cno.such.module\nat_all\n)R.", lambda _: True)
    assert str(found.of) == "no.such.module.at_all"
