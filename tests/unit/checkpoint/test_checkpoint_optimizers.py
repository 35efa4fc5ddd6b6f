"""Optimizer state goes by parameter name and comes back to the bit."""

from __future__ import annotations

import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Training, manager
from torch import nn

from dist_train.errors import CheckpointError


def groups(parameters: Any) -> list[dict[str, Any]]:
    parameters = list(parameters)
    return [{"params": parameters[:1], "lr": 0.03}, {"params": parameters[1:], "weight_decay": 0.2}]


class Counting(torch.optim.SGD):
    """It keeps more than tensors of each parameter."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for state in self.state.values():
            state["phase"] = f"{state.get('phase', '')}x"
            state.setdefault("newest", deque(maxlen=2)).append(len(state["phase"]))


MAKES = {
    "state that is not a tensor": lambda p: Counting(p, lr=0.1, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(groups(p), lr=0.01),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(groups(p), lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("name", MAKES)
def test_round_trip_is_bit_exact_and_goes_on_the_same(tmp_path: Path, name: str) -> None:
    old = Training(MAKES[name])
    old.train(3)
    manager(tmp_path).save(3, old.state)
    new = Training(MAKES[name], seed=1)
    manager(tmp_path, attempt=1).load_latest(new.state)
    assert_same_state(old.optimizer, new.optimizer)
    assert [
        {key: value for key, value in group.items() if key != "params"}
        for group in old.optimizer.param_groups
    ] == [
        {key: value for key, value in group.items() if key != "params"}
        for group in new.optimizer.param_groups
    ]
    assert_no_shared_memory(new.optimizer)
    new.train(2)
    reference = Training(MAKES[name])
    reference.train(5)
    assert new.weights() == reference.weights()
    assert_same_state(reference.optimizer, new.optimizer)


def assert_same_state(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    before, after = one.state_dict()["state"], other.state_dict()["state"]
    assert before.keys() == after.keys()
    assert before
    for index, entries in before.items():
        assert entries.keys() == after[index].keys()
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == after[index][key].dtype
                assert value.stride() == after[index][key].stride()
                assert torch.equal(value, after[index][key])
            else:
                assert value == after[index][key]


def assert_no_shared_memory(optimizer: torch.optim.Optimizer) -> None:
    places = [
        value.untyped_storage().data_ptr()
        for entries in optimizer.state.values()
        for value in entries.values()
        if isinstance(value, torch.Tensor)
    ]
    assert len(set(places)) == len(places)


def test_lbfgs_with_its_lists_of_tensors(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.LBFGS]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return model, torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(model: nn.Module, optimizer: torch.optim.LBFGS) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(torch.eye(3)) - 1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    model, optimizer = make()
    step(model, optimizer)
    manager(tmp_path).save(1, {"model": model, "optimizer": optimizer})
    other, again = make()
    manager(tmp_path, attempt=1).load_latest({"model": other, "optimizer": again})
    step(model, optimizer)
    step(other, again)
    assert torch.equal(model.weight, other.weight)


def test_float32_moments_of_bfloat16_parameters_keep_their_bits(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(4, 4).bfloat16()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = make()
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.rand(parameter.shape)
    manager(tmp_path).save(1, {"model": model, "optimizer": optimizer})
    other, again = make()
    manager(tmp_path, attempt=1).load_latest({"model": other, "optimizer": again})
    assert again.state[other.weight]["momentum_buffer"].dtype == torch.float32
    assert torch.equal(
        again.state[other.weight]["momentum_buffer"], optimizer.state[model.weight]["momentum_buffer"]
    )


def test_channels_last_moments_stay_channels_last(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = make()
    model(torch.rand(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    manager(tmp_path).save(1, {"model": model, "optimizer": optimizer})
    other, again = make()
    manager(tmp_path, attempt=1).load_latest({"model": other, "optimizer": again})
    assert_same_state(optimizer, again)


def test_order_of_parameters_does_not_matter_but_names_do(tmp_path: Path) -> None:
    old = Training(lambda p: torch.optim.Adam(list(p)))
    old.train(2)
    manager(tmp_path).save(2, old.state)
    new = Training(lambda p: torch.optim.Adam(list(p)[::-1]))
    manager(tmp_path, attempt=1).load_latest(new.state)
    moments = new.optimizer.state[new.model.emb.weight]["exp_avg"]
    assert torch.equal(moments, old.optimizer.state[old.model.emb.weight]["exp_avg"])


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    old = Training(MAKES["adam"])
    old.train()
    manager(tmp_path).save(1, old.state)
    reader = manager(tmp_path, attempt=1)
    with pytest.raises(CheckpointError, match="'optimizer' was written by Adam; this optimizer is SGD"):
        reader.load_latest(Training(MAKES["sgd"]).state)
    with pytest.raises(CheckpointError, match="'optimizer' has 2 parameter groups; the checkpoint has 1"):
        reader.load_latest(Training(lambda p: torch.optim.Adam(groups(p))).state)
    with pytest.raises(
        CheckpointError, match=r"group 0: unexpected 'norm\.bias' \(nearest: 'norm\.weight'\)"
    ):
        reader.load_latest(Training(lambda p: torch.optim.Adam(list(p)[:-1])).state)


@pytest.mark.parametrize("step", [0, 3])
def test_a_schedule_that_steps_first_after_a_resume_is_not_warned_of(tmp_path: Path, step: int) -> None:
    """As after an epoch's last step: the optimizer has stepped, before the restart."""

    def made() -> tuple[torch.optim.lr_scheduler.StepLR, dict[str, Any]]:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return schedule, {"model": model, "optimizer": optimizer, "schedule": schedule}

    manager(tmp_path).save(step, made()[1])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedule, state = made()
        manager(tmp_path, attempt=1).load_latest(state)
        schedule.step()
    assert schedule.get_last_lr() == [0.5]
    assert [str(one.message)[:36] for one in said] == (
        [] if step else ["Detected call of `lr_scheduler.step()"[:36]]
    )
