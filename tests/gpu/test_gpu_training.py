"""Training on a GPU: no step waits for it, a fused optimizer skips on it, micro-batches come one by one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dist_train.config.load import load_text
from dist_train.data.exact_loader import ExactLoader
from dist_train.distributed.control_group import Control
from dist_train.distributed.finite_check import EVERY, FiniteCheck
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.rundir.directory import RunDir
from dist_train.rundir.result import Result
from dist_train.strategies.prepare import load_strategy
from dist_train.strategies.warmup import warm_up
from dist_train.trainer.loss_normalizer import UnitCounter
from dist_train.trainer.run_training import train
from dist_train.trainer.step import Forward, Stepper
from dist_train.trainer.task import NextTokenTask

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


class Tokens:
    """Rows of tokens with padding (0) at their end."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        row = torch.arange(1, 17) % 8 + 1
        row[16 - index % 5 :] = 0
        return row


class Model(nn.Module):
    """Logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits


@pytest.fixture
def no_waiting() -> Iterator[Any]:
    """Turn an operation that makes the host wait for the GPU into an error, once it is called."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("ignore_index", [None, 0])
def test_no_step_waits_for_the_gpu(no_waiting: Any, ignore_index: int | None) -> None:
    task = NextTokenTask(ignore_index=ignore_index)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    where = None if task.units_vary else DEVICE
    batches = list(ExactLoader(Tokens(), 8, pin_memory=True, device=where).micro_batches())
    units = UnitCounter(task, Control(), batches[0])
    forward = Forward(model, task, "fp32", DEVICE)
    stepper = Stepper(forward, load_strategy("single"), optimizer, None, units, 1, clip_norm=1.0, skips=True)
    check = FiniteCheck(Control())
    stepper.run(batches[0:1])  # the first step allocates
    torch.cuda.synchronize()
    no_waiting()
    for step in range(2 * EVERY + 4):
        numbers = stepper.run([batches[step % len(batches)]])
        assert check.add(step, numbers.losses, [numbers.norm]) is None


def test_a_fused_optimizer_leaves_a_step_out_on_the_gpu(no_waiting: Any) -> None:
    from dist_train.trainer.finite_update import FiniteUpdate

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    update = FiniteUpdate(model, optimizer)
    inputs = torch.randn(8, 4, device=DEVICE)

    def step(factor: float) -> None:
        update.begin()
        optimizer.zero_grad()
        (model(inputs * factor).square().sum() * factor).backward()
        update.apply(
            torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
        )

    step(1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.cuda.synchronize()
    no_waiting()
    step(float("nan"))
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    step(1.0)
    assert not torch.equal(model[0].weight, before["0.weight"])


class Wide:
    """Samples of a megabyte."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((1 << 18,), index / 256), torch.tensor([1.0])


def net() -> nn.Module:
    """One output, with few parameters."""
    return nn.Sequential(nn.Unflatten(1, (-1, 64)), nn.Linear(64, 1), nn.Flatten(), nn.AvgPool1d(1 << 12))


def start(folder: Path, *changes: str) -> Result:
    """A run on the GPU."""
    text = """
model: test_gpu_training:net
data: {train: {target: test_gpu_training:Wide}, batch_size: 128}
loss: mse
optimizer: sgd
trainer: {steps: 2, accumulate: 16}
"""
    folder.mkdir()
    run = Run(RankInfo.from_env({}), DEVICE, directory=folder, run_id="test")
    result = train(load_text(text, "run.yaml", changes).config, run, RunDir(folder))
    assert result is not None
    return result


def test_the_micro_batches_of_a_step_are_not_all_on_the_gpu_at_once(tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    start(tmp_path / "run")
    used = torch.cuda.max_memory_allocated(DEVICE) - before
    assert used < 64 << 20, "a micro-batch has 8 MiB, a step 128 MiB"


@pytest.mark.parametrize("change", ["channels_last=true", "matmul_precision=high", "on_nonfinite=skip"])
def test_options_of_the_trainer_work_on_a_gpu(tmp_path: Path, change: str) -> None:
    assert start(tmp_path / "run", f"trainer.{change}").status == "done"


def test_the_discarded_step_warns_of_no_gpu() -> None:
    from torch import distributed as torch_dist
    from torch.distributed import HashStore
    from torch.nn.parallel import DistributedDataParallel

    torch_dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=DEVICE)
    try:
        model = DistributedDataParallel(nn.Linear(2, 2).to(DEVICE), device_ids=[0])
        state = torch.cuda.get_rng_state(DEVICE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warm_up(
                model, lambda: nn.functional.dropout(model(torch.ones(2, 2, device=DEVICE))).sum().backward()
            )
        assert torch.equal(torch.cuda.get_rng_state(DEVICE), state)
    finally:
        torch_dist.destroy_process_group()
