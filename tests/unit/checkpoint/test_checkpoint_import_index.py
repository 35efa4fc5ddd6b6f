"""Several safetensors files with an index: read as one, and what the index must not name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint
from checkpoint_cases import Tied, Training

import dist_train as dt
from dist_train.checkpoint.weights.convert import import_weights
from dist_train.checkpoint.weights.import_weights import choose_weights, open_weights
from dist_train.checkpoint.weights.safetensors_index import INDEX
from dist_train.errors import CheckpointError

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """A model in two files, as other tools write it: of tied weights one is stored."""
    state = {name: one for name, one in Training().model.state_dict().items() if name != "head.weight"}
    names = sorted(state)
    parts = {FIRST: names[:3], SECOND: names[3:]}
    for file, inside in parts.items():
        safetensors.torch.save_file({name: state[name] for name in inside}, folder / file, {"format": "pt"})
    weight_map = {name: file for file, inside in parts.items() for name in inside}
    write(folder, {"metadata": {"total_size": 1}, "weight_map": weight_map})
    return state


def write(folder: Path, index: Any) -> None:
    (folder / INDEX).write_text(json.dumps(index))


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


@pytest.mark.parametrize("name", [".", INDEX])
def test_the_directory_or_the_index_is_opened(tmp_path: Path, name: str) -> None:
    state, target = saved(tmp_path), Tied()
    dt.checkpoint.load_model(tmp_path / name, target)
    found = target.state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in state.items())
    assert target.head.weight is target.emb.weight
    done = import_weights(tmp_path / name, tmp_path / "new.safetensors")
    assert (done["tensors"], done["origin"]) == (len(state), "safetensors files with an index")
    assert choose_weights(tmp_path)[1] == tmp_path


def test_names_of_wrappers_go(tmp_path: Path) -> None:
    safetensors.torch.save_file(
        {"module.w": torch.ones(2), "module.b": torch.ones(1)}, tmp_path / "a.safetensors"
    )
    index = {"weight_map": {"module.w": "a.safetensors", "module.b": "a.safetensors"}}
    (tmp_path / "other.safetensors.index.json").write_text(json.dumps(index))
    done = import_weights(tmp_path, tmp_path / "new.safetensors")
    assert done["dropped"] == "dropped leading 'module.' from 2 names"
    with pytest.raises(CheckpointError, match=r"which has no entry 'ema'"):
        open_weights(tmp_path, "ema")


def test_tensors_that_the_index_leaves_out_are_said(tmp_path: Path) -> None:
    saved(tmp_path)
    index = index_of(tmp_path)
    del index["weight_map"]["norm.bias"]
    write(tmp_path, index)
    found = open_weights(tmp_path)
    assert found.unused == ("norm.bias",)
    assert "norm.bias" not in found.tensors


def test_second_names_stand_in_the_index_or_in_a_file(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", {"format": "pt", "c": "b"})
    safetensors.torch.save_file({"b": torch.zeros(2)}, tmp_path / "b.safetensors")
    write(tmp_path, {"metadata": None, "weight_map": {"a": "a.safetensors"}})
    assert list(open_weights(tmp_path).tensors) == ["a"]
    write(tmp_path, {"metadata": {"d": "a"}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    found = {name: tensor.tolist() for name, tensor in open_weights(tmp_path).tensors.items()}
    assert found == {"a": [1, 1], "b": [0, 0], "c": [0, 0], "d": [1, 1]}


def mapped(**files: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = index_of(folder)
        index["weight_map"] |= {name.replace("_", "."): file for name, file in files.items()}
        write(folder, index)

    return change


def cut(folder: Path) -> None:
    raw = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(raw[:-1])


def a_folder(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is missing": (lambda folder: (folder / FIRST).unlink(), rf"{FIRST} is missing: {INDEX} names it"),
    "a file is a folder": (a_folder, rf"{SECOND} is missing"),
    "a file is cut": (cut, rf"{SECOND} is not a safetensors file: its header accounts for"),
    "a file is something else": (
        lambda folder: (folder / FIRST).write_text("<html>"),
        rf"{FIRST} is not a safetensors file",
    ),
    "a file lacks a tensor": (mapped(emb_weight=SECOND), rf"{SECOND} does not hold 'emb\.weight'"),
    "an absolute path": (mapped(x="/etc/passwd"), rf"{INDEX} .*'x' lies in '/etc/passwd'"),
    "a path upwards": (mapped(x=f"../{FIRST}"), rf"{INDEX} .*'x' lies in '\.\./{FIRST}', which is no plain"),
    "a path with a zero byte": (mapped(x="a\0"), rf"{INDEX} .*no plain file name"),
    "a file that is a number": (mapped(x=3), rf"{INDEX} .*'x' lies in '3'"),
    "not JSON": (
        lambda folder: (folder / INDEX).write_text("{"),
        rf"{INDEX} is no index of safetensors files",
    ),
    "not text": (lambda folder: (folder / INDEX).write_bytes(b"\xff"), rf"{INDEX} is no index"),
    "nested deep": (lambda folder: (folder / INDEX).write_text("[" * 200_000), rf"{INDEX} is no index"),
    "a list": (lambda folder: write(folder, []), rf"{INDEX} .*has no weight_map"),
    "no map": (lambda folder: write(folder, {"weight_map": [FIRST]}), rf"{INDEX} .*has no weight_map"),
    "an empty map": (lambda folder: write(folder, {"weight_map": {}}), rf"{INDEX} .*names no tensor"),
    "metadata that are a list": (
        lambda folder: write(folder, {"metadata": [1], "weight_map": {"a": FIRST}}),
        rf"{INDEX} .*its metadata are no object",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_makes_no_sense_is_named(tmp_path: Path, case: str) -> None:
    saved(tmp_path)
    change, words = CASES[case]
    change(tmp_path)
    with pytest.raises(CheckpointError, match=words) as found:
        open_weights(tmp_path).tensors.in_memory()
    assert str(tmp_path) in str(found.value)


def test_of_several_the_caller_chooses(tmp_path: Path) -> None:
    state = saved(tmp_path)
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(
        CheckpointError, match=rf"holds an index [\s\S]* say which one: .*{INDEX} or .*\.metadata"
    ):
        open_weights(tmp_path)
    assert len(open_weights(tmp_path / INDEX).tensors) == len(open_weights(tmp_path / ".metadata").tensors)
    (tmp_path / ".metadata").unlink()
    (tmp_path / INDEX).rename(tmp_path / "a.safetensors.index.json")
    (tmp_path / "b.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds 2 indexes: a\.safetensors\.index\.json, b\."):
        open_weights(tmp_path)
