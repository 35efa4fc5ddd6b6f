"""Saves of a sharded model: kills, full disks, damage, unlike copies, gathered parameters."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_crash import DyingFiles, FullDisk
from sharded_training import Layout, Model, make, train, whole, whole_state

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
from dist_train.testing.ranks import RanksFailed

pytestmark = pytest.mark.multiprocess
FSDP = Layout("fsdp", 2)
CUT = Layout("tensor_parallel", 2)
COPIES = Layout("hsdp", 4)
BOTH = Layout("fsdp_tensor_parallel", 4)
STAGES = Layout("pipeline", 2)


class Killed(DyingFiles):
    """Ends the process at the n-th change."""

    def _change(self, what: str, path: str) -> None:
        self.count += 1
        if self.at and self.count >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def save_twice(directory: Path, who: int, at: int, layout: Layout = FSDP) -> tuple[int, list[dict[str, str]]]:
    """Save step 1 and step 2; rank `who` is killed at its change `at` of the second.

    Returns how many changes this rank made then, and the digests of both states.
    """
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        manager = CheckpointManager(directory, run_id="run")
        state = {"model": model, "optimizer": optimizer}
        train(run, model, optimizer, 0, 1)
        manager.save(1, state)
        states = [whole_state(model, optimizer)]
        train(run, model, optimizer, 1, 2)
        states.append(whole_state(model, optimizer))
        files = Killed(directory, at if run.rank == who else 0)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            manager.save(2, state)
        return files.count, states


def resume(directory: Path, attempt: int, layout: Layout) -> tuple[int, dict[str, str]]:
    with dt.init(device="cpu", seed=9, timeout_s=30):
        model, optimizer = make(layout, 5)
        manager = CheckpointManager(directory, run_id="run", attempt=attempt)
        restored = manager.load_latest({"model": model, "optimizer": optimizer})
        assert restored is not None
        return restored.step, whole_state(model, optimizer)


def killed_at(directory: Path, who: int, at: int, states: list[dict[str, str]], layout: Layout) -> int:
    """The step that is found after a kill there."""
    with pytest.raises(RanksFailed):
        run_ranks(save_twice, layout.ranks, args=(directory, who, at, layout), after_failure_s=0.5)
    found = run_ranks(resume, layout.ranks, args=(directory, 1, layout))
    step = found[0][0]
    assert found == [(step, states[step - 1])] * layout.ranks
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not (directory / "quarantine").exists()
    return step


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("who", "at", "layout"), [(0, 9, FSDP), (1, 2, FSDP), (1, 2, CUT)])
def test_a_kill_in_the_middle_leaves_the_checkpoint_before(
    tmp_path: Path, who: int, at: int, layout: Layout
) -> None:
    states = run_ranks(save_twice, 2, args=(tmp_path / "whole", -1, 0, layout))[0][1]
    assert killed_at(tmp_path / "killed", who, at, states, layout) == 1


def resume_and_save(before: Path | None, directory: Path, who: int, at: int, layout: Layout) -> int:
    """Note what is found after the kill before, in its folder; then go on from step 1 to the next kill.

    Args:
        at: the change at which rank `who` is killed; 0: when the save begins.

    Returns how many changes this rank made.
    """
    with dt.init(device="cpu", seed=9, timeout_s=30) as run:
        model, optimizer = make(layout, 5)
        state = {"model": model, "optimizer": optimizer}
        if before is not None:
            restored = CheckpointManager(before, run_id="run", attempt=1).load_latest(state)
            found = [None if restored is None else restored.step, whole_state(model, optimizer)]
            (before / f"found-{run.rank}.json").write_text(json.dumps(found))
        manager = CheckpointManager(directory, run_id="run")
        manager.load_latest(state)
        train(run, model, optimizer, 1, 2)
        files = Killed(directory, at if run.rank == who else 0)
        if run.rank == who and not at:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            manager.save(2, state)
        return files.count


def found_after(directory: Path, states: list[dict[str, str]], ranks: int) -> int:
    """The step that all ranks have found there, whole and with its state."""
    found = [json.loads((directory / f"found-{rank}.json").read_text()) for rank in range(ranks)]
    step = found[0][0]
    assert found == [[step, states[step - 1]]] * ranks
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not (directory / "quarantine").exists()
    return int(step)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.proves(
    "A rank killed at any of its file operations of a sharded save leaves a whole checkpoint: fsdp, hsdp, "
    "tensor_parallel, fsdp_tensor_parallel and pipeline"
)
@pytest.mark.parametrize("layout", [FSDP, COPIES, CUT, BOTH, STAGES], ids=lambda layout: layout.strategy)
def test_a_kill_at_any_change_of_any_rank(tmp_path: Path, layout: Layout) -> None:
    """Each run of the ranks looks at what the kill before has left, and is then killed itself."""
    states = run_ranks(save_twice, layout.ranks, args=(tmp_path / "whole", -1, 0, layout))[0][1]

    def run(before: Path | None, directory: Path, who: int, at: int) -> list[int]:
        shutil.copytree(tmp_path / "whole" / "step-00000001", directory / "step-00000001")
        words = (before, directory, who, at, layout)
        return run_ranks(resume_and_save, layout.ranks, args=words, after_failure_s=0.5)

    counts = run(None, tmp_path / "counted", -1, 0)
    # Of copies (hsdp) one is written: the ranks of the others are killed when the save begins.
    assert sum(count > 5 for count in counts) == (2 if layout is COPIES else layout.ranks), counts
    kills = [(who, at) for who, count in enumerate(counts) for at in range(min(1, count), count + 1)]
    before, seen = None, []
    for who, at in kills:
        directory = tmp_path / f"{who}-{at}"
        with pytest.raises(RanksFailed) as caught:
            run(before, directory, who, at)
        assert "SIGKILL" in caught.value.tracebacks[who], caught.value
        seen += [] if before is None else [found_after(before, states, layout.ranks)]
        before = directory
    run(before, tmp_path / "last", -1, 0)
    assert before is not None
    seen.append(found_after(before, states, layout.ranks))
    assert set(seen) == {1, 2}


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
    run_ranks(save_twice, 2, args=(tmp_path, -1, 0))
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
    run_ranks(save_twice, 2, args=(folder, -1, 0))
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
