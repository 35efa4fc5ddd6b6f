"""Several ranks: one writer, RNG state and buffers of each, equal replicas, errors that reach all."""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from checkpoint_cases import Training, manifest_of
from checkpoint_crash import FullDisk
from torch import nn

from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess
Body = Callable[[CheckpointManager, Path], None]


def run(body: Body, world_size: int, directory: Path, attempt: int = 0) -> None:
    """Run `body` in gloo ranks of their own."""
    run_ranks(_rank, world_size, args=(body, directory, attempt))


def _rank(body: Body, directory: Path, attempt: int) -> None:
    torch_dist.init_process_group("gloo")
    control = Control(torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size())
    body(CheckpointManager(directory, run_id="run", attempt=attempt, control=control), directory)
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def trained(rank: int) -> Training:
    """Equal weights on all ranks; states, BatchNorm statistics and the local buffer are each rank's own."""
    training = Training()
    training.train(2)
    random.seed(rank)
    torch.manual_seed(1000 + rank)
    training.model.norm.running_mean.fill_(rank)
    training.model.seen.fill_(10 + rank)
    return training


def save_at_three(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank
    training = trained(rank)
    committed = manager.save(2, training.state)
    # The hash is that of rank 0's weights, and every rank returns it.
    training.model.norm.running_mean.fill_(0)
    assert committed.weights_hash == training.weights()
    (directory.parent / f"draws-{rank}").write_text(repr([random.random(), torch.rand(2).tolist()]))


def resume_at_three(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank
    training = Training(seed=50 + rank)
    restored = manager.load_latest(training.state)
    assert restored is not None
    assert restored.rng_restored
    assert restored.world_size == 3
    draws = repr([random.random(), torch.rand(2).tolist()])
    assert draws == (directory.parent / f"draws-{rank}").read_text()
    assert training.model.norm.running_mean.tolist() == [rank] * 4
    assert training.model.seen.tolist() == [10 + rank] * 2
    training.model.norm.running_mean.fill_(0)
    assert training.weights() == restored.weights_hash


def resume_at_two(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dist_train.checkpoint").addHandler(handler)
    training = Training(seed=50)
    restored = manager.load_latest(training.state)
    assert restored is not None
    assert not restored.rng_restored
    assert restored.world_size == 3
    assert training.model.norm.running_mean.tolist() == [0] * 4
    assert training.model.seen.tolist() == [10] * 2
    assert training.weights() == restored.weights_hash
    messages = [line for line in messages if "derived" in line]
    # Said once in the job, with both numbers and the seed of the data.
    assert len(messages) == (1 if rank == 0 else 0)
    assert rank or ("3 ranks" in messages[0] and "loaded by 2" in messages[0] and "(seed 5," in messages[0])
    draws = manager.control.all_gather(random.random())
    assert len(set(draws)) == 2


def test_ranks_save_and_resume_also_at_another_world_size(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run(save_at_three, 3, directory)
    keys = set(manifest_of(directory, 2).tensors)
    assert {f"data{r}/rng/torch" for r in range(3)} <= keys
    assert {k for k in keys if "/buffer/" in k} == {
        *(f"rank{r}/buffer/seen" for r in range(3)),
        *(f"rank{r}/buffer/norm.running_mean" for r in (1, 2)),
    }
    run(resume_at_three, 3, directory, attempt=1)
    run(resume_at_two, 2, directory, attempt=2)


def disagree(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank

    def refused(state: dict[str, Any], *words: str, odd: tuple[int, ...] = (1,)) -> None:
        with pytest.raises(ReplicaMismatch) as caught:
            manager.save(3, state)
        assert caught.value.odd_ranks == odd
        assert caught.value.exit_code == 74
        for word in words:
            assert word in str(caught.value), str(caught.value)
        assert not list(directory.glob("*step*"))

    training = Training()
    training.train(2)
    with torch.no_grad():
        # One bit of one weight.
        training.model.norm.weight.view(torch.int32)[2] ^= int(rank == 1)
    refused(training.state, "rank 1 has other weights ('model') than ranks 0,2", "in 'model/norm.weight'")

    training = Training()
    training.train(2)
    training.optimizer.state[training.model.emb.weight]["exp_avg"][0, 0] += rank == 2
    refused(training.state, "rank 2 has other optimizer state", "'optim/emb.weight/exp_avg'", odd=(2,))

    training.optimizer.param_groups[0]["lr"] = 0.1 * rank
    refused(training.state, "no majority", odd=(1, 2))
    refused({"notes": {"mine": rank == 1}}, "rank 1 has other state ('notes')", "first in the value 'mine'")
    with pytest.raises(ReplicaMismatch, match=r"different steps \(rank 0: 3, rank 1: 4, rank 2: 5\)"):
        manager.save(3 + rank, {"notes": 1})


@pytest.mark.proves(
    "Replicas agree at each save, or the odd rank is named",
)
def test_the_odd_rank_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    run(disagree, 3, tmp_path / "run")


def fail_together(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank
    training = Training()
    manager.save(1, training.state)

    # The writer's disk is full: every rank hears it.
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            FullDisk(directory, "write", 2, errno.ENOSPC).install(patch)
        with pytest.raises(CheckpointWriteError, match=os.strerror(errno.ENOSPC)) as full:
            manager.save(2, training.state)
    assert "(step 1) stays" in str(full.value)
    manager.control.barrier()
    assert manager.steps() == [1]

    # One rank cannot say what it holds: all raise, and the others name it.
    state: dict[str, Any] = {"notes": Path("x") if rank == 1 else "x"}
    with pytest.raises(CheckpointError, match="'notes' is of type" if rank == 1 else "on rank 1: 'notes'"):
        manager.save(2, state)

    # One rank has another model: all refuse, nothing is changed.
    other = {"model": nn.Linear(2, 2)} if rank == 1 else {**training.state}
    before = training.weights()
    with pytest.raises(CheckpointError):
        manager.load_latest(other)
    assert training.weights() == before

    # A damaged newest checkpoint: all ranks go to the one before.
    torch.manual_seed(0)
    training.train(2)
    manager.save(2, training.state)
    manager.control.barrier()
    if rank == 0:
        (directory / "step-00000002" / "state.json").write_bytes(b"")
    manager.control.barrier()
    restored = manager.load_latest(training.state)
    assert restored is not None
    assert restored.step == 1
    manager.save(2, training.state)


def test_an_error_on_one_rank_reaches_all_and_none_hangs(tmp_path: Path) -> None:
    run(fail_together, 2, tmp_path / "run")


def under_ddp(manager: CheckpointManager, directory: Path) -> None:
    rank = manager.control.rank
    training = Training()
    wrapped = nn.parallel.DistributedDataParallel(training.model)
    state = {**training.state, "model": wrapped}
    torch.manual_seed(rank)
    for _ in range(3):
        training.optimizer.zero_grad()
        wrapped(torch.randint(6, (5,))).square().mean().backward()
        training.optimizer.step()
    # BatchNorm's statistics differ between ranks here, as they do in every DDP run.
    assert manager.save(3, state).weights_hash
    fresh = Training(seed=4)
    assert manager.load_latest({**fresh.state, "model": nn.parallel.DistributedDataParallel(fresh.model)})
    assert fresh.weights() == training.weights()
    manifest = manifest_of(directory, 3)
    assert "model/emb.weight" in manifest.tensors
    assert "rank1/buffer/norm.running_mean" in manifest.tensors


def test_under_ddp(tmp_path: Path) -> None:
    run(under_ddp, 2, tmp_path / "run")


def copies_of_a_save(directory: Path) -> int:
    """How often this rank copies a tensor of its state to contiguous host memory in one save."""
    torch_dist.init_process_group("gloo")
    control = Control(torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size())
    made, contiguous = [], torch.Tensor.contiguous

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        made.extend([1] * (not tensor.is_contiguous()))
        return contiguous(tensor)

    torch.Tensor.contiguous = counted  # type: ignore[method-assign,assignment]
    manager = CheckpointManager(directory, run_id="run", attempt=0, control=control)
    manager.save(1, {"x": torch.arange(6.0).reshape(2, 3).T})
    torch_dist.barrier()
    torch_dist.destroy_process_group()
    return len(made)


def test_rank_0_copies_its_state_once(tmp_path: Path) -> None:
    assert run_ranks(copies_of_a_save, 2, args=(tmp_path,)) == [1, 1]
