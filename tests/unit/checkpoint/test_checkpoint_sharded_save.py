"""Saves of a sharded model: full disks, damage, unlike copies, gathered parameters (kills: another file)."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_crash import FullDisk
from sharded_training import Layout, Model, make, save_twice, train, whole, whole_state

import dist_train as dt
from dist_train.checkpoint import CheckpointManager, collective_load
from dist_train.checkpoint.format.boxes import Box
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, ReplicaMismatch
from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.sharded_reader import ShardedReader, sharded_keys
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess
FSDP = Layout("fsdp", 2)


def save_to_a_full_disk(directory: Path) -> str:
    with dt.init(device="cpu", timeout_s=30) as run:
        model, optimizer = make(FSDP, 0)
        manager = CheckpointManager(directory)
        with pytest.MonkeyPatch.context() as patch:
            if run.rank == 1:
                FullDisk(directory, "write", 1, errno.ENOSPC).install(patch)
            with pytest.raises(CheckpointWriteError) as caught:
                manager.save(1, {"model": model, "optimizer": optimizer})
        manager.save(2, {"model": model, "optimizer": optimizer})
        return str(caught.value)


def test_a_disk_that_is_full_for_one_rank_is_that_error_on_all(tmp_path: Path) -> None:
    said = run_ranks(save_to_a_full_disk, 2, args=(tmp_path,))
    assert "rank 1's files could not be written" in said[1]
    assert said[0] == f"on rank 1: {said[1]}"
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith("step")) == ["step-00000002"]


def load_damaged(directory: Path) -> tuple[int, int]:
    with dt.init(device="cpu", timeout_s=30):
        model, optimizer = make(FSDP, 0)
        restored = CheckpointManager(directory).load_latest({"model": model, "optimizer": optimizer})
        assert restored is not None
        return restored.step, len(os.listdir(directory / "quarantine"))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("damage", ["a flipped bit", "a file that is gone", "a file that is cut"])
def test_damage_in_one_ranks_file_is_found_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    run_ranks(save_twice, 2, args=(FSDP, tmp_path))
    file = tmp_path / "step-00000002" / "optim.rank1.safetensors"
    if damage == "a file that is gone":
        file.unlink()
    else:
        raw = bytearray(file.read_bytes())
        raw[-3] ^= 1
        file.write_bytes(raw if damage == "a flipped bit" else raw[:-3])
    assert "optim.rank1.safetensors" in verify_checkpoint(tmp_path / "step-00000002").problems[0]
    assert run_ranks(load_damaged, 2, args=(tmp_path,)) == [(1, 1)] * 2


def save_after_an_evaluation(directory: Path, gradients: bool, layout: Layout) -> bool:
    """Whether the state that is restored is that which was saved, with the parameters gathered in between."""
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        train(run, model, optimizer, 0, 1)
        tokens = torch.zeros(2, 3, dtype=torch.long)

        def evaluate() -> None:
            with torch.set_grad_enabled(gradients):
                model.eval()(tokens)

        evaluate()
        # The optimizer first: torch gives the parts back when it reads the model's state.
        manager, state = CheckpointManager(directory), {"optimizer": optimizer, "model": model}
        manager.save(1, state)
        before = whole_state(model, optimizer)
        train(run, model.train(), optimizer, 1, 2)
        evaluate()
        manager.load_latest(state)
        return before == whole_state(model, optimizer)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("layout", [FSDP, Layout("fsdp_tensor_parallel", 4)], ids=lambda layout: layout.name)
def test_parameters_that_an_evaluation_has_gathered_are_saved_and_restored(
    tmp_path: Path, gradients: bool, layout: Layout
) -> None:
    assert all(run_ranks(save_after_an_evaluation, layout.ranks, args=(tmp_path, gradients, layout)))


def save_unlike_states(directory: Path, what: str) -> str:
    with dt.init(device="cpu", timeout_s=30) as run:
        model, optimizer = make(FSDP, 0)
        state = {"model": model, "optimizer": optimizer}
        if run.rank == 1:
            if what == "a plain model":
                state = {"model": Model(), "optimizer": torch.optim.AdamW(Model().parameters())}
                del state["optimizer"]
            else:
                train_alone(model, optimizer)
        else:
            state = state if what != "a plain model" else {"model": model}
        with pytest.raises(ReplicaMismatch) as caught:
            CheckpointManager(directory).save(1, state)
        return str(caught.value)


def train_alone(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give one parameter a moment that the other ranks do not have."""
    parameter = next(iter(model.parameters()))
    optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a plain model", "the state of rank 0 is sharded, that of rank 1 is not"),
        ("a moment", "step 1 is not saved"),
    ],
)
def test_ranks_with_unlike_states_are_refused(tmp_path: Path, what: str, said: str) -> None:
    found = run_ranks(save_unlike_states, 2, args=(tmp_path, what))
    assert all(said in each for each in found), found
    assert not list(tmp_path.glob("step-*"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the steps 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    run_ranks(save_twice, 2, args=(FSDP, folder))
    return folder


def test_each_block_is_compared_when_it_is_read(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "step-00000002", tmp_path / "step-00000002")
    storage, key = FileStorage(tmp_path), "model/head.weight"
    manifest = parse_manifest((tmp_path / "step-00000002" / "manifest.json").read_bytes())
    reader = ShardedReader(storage, "step-00000002", manifest)
    box = Box((4, 1), (1, 3))
    assert torch.equal(reader.read(key, box), reader.read(key)[4:5, 1:4])
    file = tmp_path / "step-00000002" / "model.rank1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedCheckpoint, match=r"model\.rank1\.safetensors: block 0 .* does not match"):
        reader.read(key, box)
    reader.read(key, Box((0, 0), (1, 6)))  # of the other rank's file


def test_parts_that_do_not_make_a_tensor_are_damage(saved: Path) -> None:
    manifest = parse_manifest((saved / "step-00000002" / "manifest.json").read_bytes())
    entry = manifest.tensors["model/head.weight"]
    assert sharded_keys(manifest)
    cut = manifest.model_copy(
        update={"tensors": {**manifest.tensors, "model/head.weight": entry._replace(shards=entry.shards[:1])}}
    )
    with pytest.raises(DamagedCheckpoint, match=r"'model/head\.weight' do not make it whole"):
        sharded_keys(cut)


def test_the_manifest_of_a_sharded_checkpoint_names_each_layout_once(saved: Path) -> None:
    record = json.loads((saved / "step-00000002" / "manifest.json").read_text())
    # The weight and both moments of a tensor lie in unlike files, the tensors of one shape in one.
    assert len(record["layouts"]) < len(record["tensors"]) / 2
    assert record["mesh"] == [["shard", 2]]


def verified_files(directory: Path) -> list[str]:
    """Which files this rank verifies as a whole when it resumes."""
    seen: list[str] = []
    with dt.init(device="cpu", timeout_s=30), pytest.MonkeyPatch.context() as patch:
        check = collective_load.check_file
        patch.setattr(
            collective_load,
            "check_file",
            lambda storage, name, entry: seen.append(entry.name) or check(storage, name, entry),
        )
        model, optimizer = make(FSDP, 5)
        CheckpointManager(directory, run_id="run", attempt=1).load_latest(
            {"model": model, "optimizer": optimizer}
        )
    return seen


def test_the_ranks_verify_the_files_of_parts_in_turn(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    found = run_ranks(verified_files, 2, args=(folder,))
    everything = {f"{part}.rank{rank}.safetensors" for part in ("model", "optim") for rank in range(2)}
    assert sorted(found[0] + found[1]) == sorted(everything)
    assert all(found)


def save_with_pending_gradients(directory: Path, step_first: bool, silent: bool = False) -> str:
    with dt.init(device="cpu", timeout_s=30):
        model = dt.prepare(torch.nn.Linear(2, 1), "fsdp")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        manager = CheckpointManager(directory)
        data = dt.loader(torch.utils.data.TensorDataset(torch.ones(8, 2)), 4)
        for number, (x,) in enumerate(data):
            with dt.no_sync(model) if silent and number else nullcontext():
                model(x).sum().backward()
            if number == 0 or step_first:
                optimizer.step()
                optimizer.zero_grad()
            if number == 1:
                try:
                    manager.save(1, {"model": model, "optimizer": optimizer, "loader": data})
                except CheckpointError as error:
                    return str(error)
        return "saved"


def test_gradients_that_no_step_has_applied_are_not_lost(tmp_path: Path) -> None:
    assert run_ranks(save_with_pending_gradients, 2, args=(tmp_path / "a", True)) == ["saved"] * 2
    for silent in (False, True):
        for said in run_ranks(save_with_pending_gradients, 2, args=(tmp_path / f"b{silent}", False, silent)):
            assert "has gradients that no step has applied" in said


class Averages:
    """An object whose state is spread as the weights are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def averages_come_back(directory: Path) -> list[bool]:
    with dt.init(device="cpu", seed=1, timeout_s=30):
        model, optimizer = make(FSDP, 0)
        averages = Averages(model)
        state = {"model": model, "optimizer": optimizer, "object": averages, "dict": dict(averages.values)}
        manager = CheckpointManager(directory)
        manager.save(1, state)
        saved = {name: whole(value) for name, value in averages.values.items()}
        for value in (*averages.values.values(), *state["dict"].values()):
            value.zero_()
        manager.load_latest(state)
        found = []
        for restored in (averages.values, state["dict"]):
            for name, value in restored.items():
                value.lerp_(dict(model.named_parameters())[name].detach(), 0.0)  # spread as the weight is
                found.append(torch.equal(whole(value), saved[name]))
        return found


def test_state_that_is_spread_as_the_weights_comes_back_so(tmp_path: Path) -> None:
    for found in run_ranks(averages_come_back, 2, args=(tmp_path,)):
        assert found
        assert all(found)


def save_model_of_a_part(path: Path) -> str:
    with dt.init(device="cpu", timeout_s=30), pytest.raises(CheckpointError) as caught:
        dt.checkpoint.save_model(make(FSDP, 0)[0], path)
    return str(caught.value)


def test_save_model_of_a_sharded_model_says_what_to_do(tmp_path: Path) -> None:
    for said in run_ranks(save_model_of_a_part, 2, args=(tmp_path / "model.safetensors",)):
        assert "is spread over ranks" in said
        assert "checkpoint export" in said
