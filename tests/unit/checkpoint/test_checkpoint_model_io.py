"""save_model and load_model: one safetensors file that any tool opens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import safetensors.torch
import torch
from checkpoint_cases import Tied, Training, manager
from checkpoint_crash import FullDisk
from torch import nn

import dist_train as dt
from dist_train.checkpoint.weights.import_weights import open_weights
from dist_train.errors import CheckpointError, CheckpointWriteError, NotFoundError


def test_a_tied_model_there_and_back_and_through_safetensors(tmp_path: Path) -> None:
    training = Training()
    training.train(2)
    path = tmp_path / "out" / "model.safetensors"
    dt.checkpoint.save_model(training.model, path)
    ours, theirs = Tied(), Tied()
    dt.checkpoint.load_model(path, ours)
    safetensors.torch.load_model(theirs, path)
    for model in (ours, theirs):
        assert {k: v.tolist() for k, v in model.state_dict().items()} == {
            k: v.tolist() for k, v in training.model.state_dict().items()
        }
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]
    assert len(safetensors.torch.load_file(path)) == len(ours.state_dict()) - 1


def test_a_checkpoint_directory_opens_too_and_is_verified(tmp_path: Path) -> None:
    training = Training()
    training.train()
    path = manager(tmp_path).save(1, training.state).path
    fresh = Tied()
    dt.checkpoint.load_model(path, fresh)
    assert torch.equal(fresh.head.weight, training.model.head.weight)
    assert fresh.head.weight is fresh.emb.weight
    (path / "optim.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"optim\.safetensors has 0 bytes"):
        dt.checkpoint.load_model(path, fresh)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_wrappers_names_are_dropped_and_that_is_logged(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = nn.Linear(2, 3), nn.Linear(2, 3)
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({prefix + k: v for k, v in source.state_dict().items()}, path)
    with caplog.at_level(logging.INFO):
        dt.checkpoint.load_model(path, target)
    assert torch.equal(target.weight, source.weight)
    assert f"dropped leading '{prefix}' from 2 names" in caplog.text


def test_a_model_that_has_a_part_called_module_keeps_it(tmp_path: Path) -> None:
    source, target = (torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)) for _ in range(2))
    dt.checkpoint.save_model(source, tmp_path / "w.safetensors")
    dt.checkpoint.load_model(tmp_path / "w.safetensors", target)
    assert torch.equal(target.module.weight, source.module.weight)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    dt.checkpoint.save_model(nn.Sequential(nn.Linear(2, 2)), path)
    with pytest.raises(CheckpointError, match=r"missing .*'weight' \(nearest: '0\.weight'\)"):
        dt.checkpoint.load_model(path, nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"float32 .* there and float16"):
        dt.checkpoint.load_model(path, nn.Sequential(nn.Linear(2, 2)).half())
    with pytest.raises(NotFoundError, match="no file or checkpoint"):
        dt.checkpoint.load_model(tmp_path / "none", nn.Linear(2, 2))
    with pytest.raises(NotFoundError, match=r"it has no manifest\.json"):
        dt.checkpoint.load_model(tmp_path, nn.Linear(2, 2))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="accounts for"):
        dt.checkpoint.load_model(path, nn.Sequential(nn.Linear(2, 2)))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    dt.checkpoint.save_model(nn.Linear(2, 2), path)
    old = path.read_bytes()
    with monkeypatch.context() as patch:
        FullDisk(tmp_path, "fsync", 1).install(patch)
        with pytest.raises(CheckpointWriteError, match="No space left on device"):
            dt.checkpoint.save_model(nn.Linear(2, 2), path)
    assert path.read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 1


def test_values_that_the_model_ties_must_be_equal(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.ones(6, 4))
    dt.checkpoint.save_model(untied, path)
    with pytest.raises(
        CheckpointError, match=r"ties 'head\.weight' to 'emb\.weight', but .* different values"
    ):
        dt.checkpoint.load_model(path, Tied())


class Metadata(nn.Module):
    """Has a tensor that is called as safetensors calls its metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("__metadata__", torch.ones(2))


def test_a_name_that_safetensors_keeps_for_itself_is_refused_before_the_training(tmp_path: Path) -> None:
    for act in (
        lambda: dt.checkpoint.save_model(Metadata(), tmp_path / "w.safetensors"),
        lambda: dt.checkpoint.CheckpointManager(tmp_path).load_latest({"model": Metadata()}),
        lambda: dt.checkpoint.CheckpointManager(tmp_path).save(1, {"model": Metadata()}),
    ):
        with pytest.raises(CheckpointError, match=r"a tensor is called '(model/)?__metadata__'"):
            act()
    assert not list(tmp_path.glob("step-*"))
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_header_whose_length_begins_as_a_pickle_does(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for padding in range(300):
        safetensors.torch.save_file({"w": torch.arange(3.0)}, path, {"note": "x" * padding})
        if path.read_bytes()[0] == 0x80:
            break
    assert path.read_bytes()[0] == 0x80
    assert open_weights(path).origin == "safetensors"
