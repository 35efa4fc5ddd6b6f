"""Parameters with options of their own: no decay of norms and biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer loads it, and it sets an environment variable: not inside a test
from torch import nn

import dist_train as dt
from dist_train.config.load import load_text
from dist_train.config.schema import ParameterGroup
from dist_train.errors import ConfigError
from dist_train.testing import run_ranks
from dist_train.trainer.parameter_groups import check_group_options, grouped


def model() -> nn.Module:
    net = nn.Sequential()
    net.add_module("first", nn.Linear(4, 4))
    net.add_module("norm", nn.LayerNorm(4))
    net.add_module("head", nn.Linear(4, 2))
    return net


def group(**keys: Any) -> ParameterGroup:
    return ParameterGroup(**{"args": {"weight_decay": 0.0}, **keys})


def names(groups: list[dict[str, Any]], net: nn.Module) -> list[list[str]]:
    by_id = {id(parameter): name for name, parameter in net.named_parameters()}
    return [[by_id[id(parameter)] for parameter in one["params"]] for one in groups]


def test_no_decay_on_norms_and_biases_and_the_first_match_applies() -> None:
    net = model()
    groups = grouped(
        net,
        [
            group(parameters=["*.bias"], modules=["*Norm*"]),
            group(parameters=["head.*"], args={"lr": 0.5}),
        ],
    )
    assert names(groups, net) == [
        ["first.weight"],
        ["first.bias", "norm.weight", "norm.bias", "head.bias"],
        ["head.weight"],
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.01)
    check_group_options(optimizer, [group(parameters=["*.bias"])])
    assert [(one["lr"], one["weight_decay"]) for one in optimizer.param_groups] == [
        (0.1, 0.01),
        (0.1, 0.0),
        (0.5, 0.01),
    ]


def test_a_pattern_without_a_parameter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"groups.0: no parameter is called 'haed.weight'") as raised:
        grouped(model(), [group(parameters=["haed.weight"])])
    assert "'head.weight'" in str(raised.value.hint)
    with pytest.raises(ConfigError, match=r"groups.1: no module with parameters is a 'BatchNorm\*'"):
        grouped(model(), [group(parameters=["*"]), group(modules=["BatchNorm*"])])


def test_an_option_that_the_optimizer_does_not_have_is_refused() -> None:
    wrong = group(parameters=["*"], args={"weight_decy": 0.0})
    optimizer = torch.optim.AdamW(grouped(model(), [wrong]), lr=0.1)
    with pytest.raises(ConfigError, match="AdamW has no option 'weight_decy'") as raised:
        check_group_options(optimizer, [wrong])
    assert "'weight_decay'" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ("[{parameters: ['*']}]", "say which options of the optimizer differ"),
        ("[{args: {lr: 1.0}}]", "say which parameters"),
        ("[{parameter: ['*'], args: {lr: 1.0}}]", "parameters"),
    ],
)
def test_an_incomplete_group_is_refused(groups: str, text: str) -> None:
    config = """
model: {target: torch.nn:Linear, args: {in_features: 1, out_features: 1}}
data: {train: digits, batch_size: 4}
loss: mse
optimizer: adamw
trainer: {epochs: 1}
"""
    with pytest.raises(ConfigError, match=text):
        load_text(config, "run.yaml", [f"parameter_groups={groups}"])


class Listed(nn.Module):
    """Its units are layers of a class that others are of, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))


def groups_of_classes(strategy: str) -> list[list[str]]:
    with dt.init(device="cpu", timeout_s=20):
        net = dt.unwrap(dt.prepare(Listed(), strategy))
        return names(grouped(net, [group(modules=["Linear"]), group(modules=["Listed", "*Norm*"])]), net)


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_classes_have_the_names_of_the_program_under_every_strategy(strategy: str) -> None:
    linear = ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]
    others = ["scale", "layers.1.weight", "layers.1.bias"]
    assert run_ranks(groups_of_classes, 2, args=(strategy,)) == [[linear, others]] * 2
