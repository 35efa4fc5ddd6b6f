"""`trainer.precision: fp16`: the scale of the loss falls and grows on all ranks together, and is saved."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from block_cases import config, trained
from torch import nn

import dist_train as dt
from dist_train.env import INJECT
from dist_train.errors import ConfigError, UsageError
from dist_train.testing import run_ranks

FP16 = "trainer.precision=fp16"
# The first steps overflow; later ones let the scale grow again.
LARGE = "trainer.loss_scale={initial: 16777216, growth_interval: 3}"
LONG = "trainer.epochs=3"
HSDP = "strategy={name: hsdp, options: {replicate: 2}}"


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [
        (1, "strategy=ddp"),
        (2, "strategy=ddp"),
        pytest.param(2, "strategy=fsdp", marks=pytest.mark.proof),
    ],
)
def test_overflows_leave_steps_out_and_the_loss_falls_as_in_fp32(
    tmp_path: Path, ranks: int, strategy: str
) -> None:
    full, half = (
        run_ranks(trained, ranks, 60, args=(tmp_path / name, (strategy, "trainer.epochs=10", *changes)))[0]
        for name, changes in (("full", ()), ("half", (FP16, LARGE)))
    )
    steps = half["steps"]
    assert steps[0]["overflow_steps"] == 1
    assert steps[0]["loss_scale"] == 2.0**23
    assert 2 <= steps[-1]["overflow_steps"] < len(steps) / 2
    scales = [step["loss_scale"] for step in steps]
    assert any(after > before for before, after in pairwise(scales))
    assert "loss_scale" not in full["steps"][0]
    assert half["losses"][-1] < half["losses"][0] / 2
    assert full["losses"][-1] < full["losses"][0] / 2


@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.parametrize(("ranks", "strategy"), [(1, "strategy=ddp"), (2, "strategy=ddp"), (2, HSDP)])
def test_a_restart_goes_on_with_the_scale_and_ends_with_the_same_bits(
    tmp_path: Path, ranks: int, strategy: str
) -> None:
    changes = (strategy, FP16, LARGE, LONG)
    (undisturbed, *_) = run_ranks(trained, ranks, 60, args=(tmp_path / "one", changes))
    # On all ranks: else the others would wait for the one that is gone.
    faults = ";".join(f"raise:rank={rank},step=12" for rank in range(ranks))
    broken = run_ranks(trained, ranks, 60, args=(tmp_path / "two", changes), environ={INJECT: faults})
    assert broken == [{"fault": True}] * ranks
    (again, *_) = run_ranks(trained, ranks, 60, args=(tmp_path / "two", changes))
    assert (again["weights"], again["state"]) == (undisturbed["weights"], undisturbed["state"])
    assert again["steps"][-1]["loss_scale"] == undisturbed["steps"][-1]["loss_scale"]


@pytest.mark.parametrize(("first", "then"), [("fp16", "fp32"), ("fp32", "fp16")])
def test_a_run_goes_on_in_another_precision(tmp_path: Path, first: str, then: str) -> None:
    run_ranks(trained, 1, 60, args=(tmp_path, (f"trainer.precision={first}",)))
    found = run_ranks(trained, 1, 60, args=(tmp_path, (f"trainer.precision={then}", "trainer.epochs=2")))[0]
    assert len(found["losses"]) == 12


def test_an_overflow_is_no_incident_of_non_finite_numbers_but_a_bad_loss_is(tmp_path: Path) -> None:
    bad = "data.train.args={bad: [23]}"
    with pytest.raises(Exception, match="the loss is not finite on rank 0"):
        run_ranks(trained, 1, 60, args=(tmp_path / "stop", (FP16, LARGE, bad)))
    passed = run_ranks(
        trained, 1, 60, args=(tmp_path / "skip", (FP16, LARGE, bad, "trainer.on_nonfinite=skip"))
    )[0]
    good = run_ranks(trained, 1, 60, args=(tmp_path / "good", (FP16, LARGE)))[0]
    # The step with the bad loss has not changed the scale.
    assert passed["steps"][-1]["overflow_steps"] <= good["steps"][-1]["overflow_steps"]


def test_gradients_that_overflow_without_a_scale_are_an_incident(tmp_path: Path) -> None:
    changes = ("model=nonfinite_cases:net", "loss=null", "task=nonfinite_cases:InfiniteGradient", FP16)
    smallest = "trainer.loss_scale={initial: 1}"
    with pytest.raises(Exception, match="the gradients are not finite"):
        run_ranks(trained, 1, 60, args=(tmp_path / "run", (*changes, smallest)))


def two_steps(strategy: str, options: dict[str, Any]) -> list[Any]:
    """An own loop in which one rank's gradient is made infinite after the exchange, in the first step."""
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        torch.manual_seed(0)
        model = dt.prepare(nn.Linear(4, 4), strategy, **options)
        optimizer, scaler = torch.optim.Adam(model.parameters()), dt.LossScaler(initial=1024.0)
        made = []
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(2, 4)).float().square().mean()
            scaler.scale(loss).backward()
            if step == 0 and run.rank == run.world_size - 1:
                gradient: Any = next(model.parameters()).grad
                (gradient.to_local() if hasattr(gradient, "to_local") else gradient).fill_(torch.inf)
            scaler.unscale_(optimizer)
            dt.clip_grad_norm_(model, 1.0)
            made.append(scaler.step(optimizer))
            scaler.update()
        finite = all(bool(torch.isfinite(p.detach()).all()) for p in model.parameters())
        return [made, scaler.state_dict(), finite]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("ranks", "strategy", "options"),
    [(1, "ddp", {}), (2, "ddp", {}), (2, "fsdp", {}), (4, "hsdp", {"replicate": 2})],
)
def test_all_ranks_leave_out_what_one_has_found(ranks: int, strategy: str, options: dict[str, Any]) -> None:
    for found in run_ranks(two_steps, ranks, 60, args=(strategy, options)):
        assert found == [[False, True], {"factor": 512.0, "good_steps": 1, "skipped": 1}, True]


def test_a_scaler_counts_as_torchs_does() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.0)
    ours = dt.LossScaler(initial=8.0, growth_interval=2)
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for factor in (1.0, float("inf"), 1.0, 1.0, 1.0, float("inf"), float("nan"), 1.0):
        for scaler in (ours, theirs):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert ours.factor == theirs.get_scale()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fp16 only, and trainer\.precision is bf16"):
        config("trainer.precision=bf16", "trainer.loss_scale={}")
    with pytest.raises(ConfigError, match="growth_factor=1"):
        dt.LossScaler(growth_factor=1)
    half = nn.Linear(2, 2).half()
    half(torch.ones(1, 2).half()).sum().backward()
    optimizer, scaler = torch.optim.SGD(half.parameters()), dt.LossScaler()
    with pytest.raises(UsageError, match="gradients are in float16"):
        scaler.unscale_(optimizer)


def two_optimizers(scaler: Any) -> list[float]:
    torch.manual_seed(0)
    models = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(models[1](models[0](torch.ones(2, 4))).square().mean()).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    return [model.weight.sum().item() for model in models]


def test_the_scale_is_taken_out_for_each_of_several_optimizers() -> None:
    assert two_optimizers(dt.LossScaler(1024.0)) == two_optimizers(torch.amp.GradScaler("cpu", 1024.0))


def test_a_step_without_update_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([weight], 0.1), dt.LossScaler()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(UsageError, match="twice for one optimizer without update"):
        scaler.step(optimizer)


def test_a_loss_in_float16_is_scaled_as_torch_scales_it() -> None:
    loss = torch.tensor(2.0, dtype=torch.float16)
    assert dt.LossScaler().scale(loss).item() == torch.amp.GradScaler("cpu").scale(loss).item() == 131072.0


def scaler_before_init() -> tuple[bool, float]:
    scaler = dt.LossScaler(1024.0)
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        model = dt.prepare(nn.Linear(4, 4), "fsdp")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        if run.rank == 1:
            gradient: Any = next(model.parameters()).grad
            gradient.to_local().fill_(torch.inf)
        made = scaler.step(optimizer)
        scaler.update()
        return made, scaler.factor


@pytest.mark.multiprocess
def test_a_scaler_that_was_made_before_the_run_decides_with_all_ranks() -> None:
    assert run_ranks(scaler_before_init, 2, 60) == [(False, 512.0)] * 2
