"""Parameters, gradients and optimizer state of an estimate are what a rank holds, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from estimate_cases import config_of
from torch import nn

import dist_train as dt
from dist_train.distributed.parameter_shards import own_part
from dist_train.estimate.optimizer_memory import OptimizerState
from dist_train.models.transformer import ByteTransformer
from dist_train.strategies.rank_memory import memory_of
from dist_train.strategies.strategy_fit import fit_strategy
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess


class Uneven(nn.Module):
    """Rows that no number of ranks divides, or fewer than ranks; a frozen, tied parameter; a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 5), nn.Linear(5, 1)])
        self.frozen = nn.Linear(5, 5)
        self.frozen.weight.requires_grad_(False)
        self.head = nn.Linear(5, 5, bias=False)
        self.head.weight = self.frozen.weight
        self.scale = nn.Parameter(torch.ones(3, 2))
        self.register_buffer("mask", torch.ones(11))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.blocks[1](self.blocks[0](inputs))
        return self.blocks[2](self.head(self.frozen(x))) + self.scale.sum()


MODELS = {"uneven": Uneven, "transformer": lambda: ByteTransformer(vocab=37, width=12, heads=2, depth=3)}
OPTIMIZERS = {
    "adamw": {"target": "adamw", "args": {"lr": 0.01}},
    "amsgrad": {"target": "torch.optim:AdamW", "args": {"lr": 0.01, "amsgrad": True}},
    "momentum": {"target": "sgd", "args": {"lr": 0.01, "momentum": 0.9}},
    "sgd": {"target": "sgd", "args": {"lr": 0.01}},
}


def _inputs(name: str) -> torch.Tensor:
    return torch.ones(2, 5) if name == "uneven" else torch.ones(2, 8, dtype=torch.int64)


def _held(name: str, strategy: str, options: dict[str, Any], optimizer: str) -> dict[str, int]:
    """Bytes of this rank's memory after one step, each storage once."""
    from dist_train.trainer.component_factory import make

    with dt.init(seed=0, device="cpu"):
        model = dt.prepare(MODELS[name](), strategy, **options)
        chosen = make(config_of(optimizer=OPTIMIZERS[optimizer]).optimizer, "optimizer", model.parameters())
        model(_inputs(name)).sum().backward()
        chosen.step()
        parameters = list(model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        states = [value for p in parameters for value in chosen.state.get(p, {}).values()]
        return {
            "parameters": _storages(parameters),
            "gradients": _storages(gradients),
            "optimizer": sum(own_part(one).numel() * one.element_size() for one in states),
        }


def _storages(tensors: list[Any]) -> int:
    found = {}
    for tensor in tensors:
        storage = own_part(tensor.detach()).untyped_storage()
        found[storage.data_ptr() if storage.nbytes() else -1] = storage.nbytes()
    return sum(found.values())


CASES = [
    ("fsdp", {}, 2),
    ("fsdp", {}, 3),
    ("fsdp", {}, 4),
    ("fsdp", {"reshard_after_forward": False}, 3),
    ("hsdp", {"replicate": 2}, 4),
    ("hsdp", {"replicate": 1, "shard": 3}, 3),
    ("ddp", {}, 2),
]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("strategy", "options", "ranks"), CASES)
def test_real_ranks_hold_what_the_closed_form_says(
    strategy: str, options: dict[str, Any], ranks: int, name: str
) -> None:
    for optimizer in OPTIMIZERS if (name, ranks) == ("uneven", 3) and not options else ("adamw",):
        held = run_ranks(_held, ranks, 90, args=(name, strategy, options, optimizer))
        assert [held[rank] for rank in (0, ranks - 1)] == _expected(name, strategy, options, ranks, optimizer)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("strategy", "options", "ranks"),
    [("tensor_parallel", {}, 2), ("fsdp_tensor_parallel", {"tensor": 2}, 4)],
)
def test_ranks_that_cut_layers_hold_what_the_closed_form_says(
    strategy: str, options: dict[str, Any], ranks: int
) -> None:
    held = run_ranks(_held, ranks, 90, args=("transformer", strategy, options, "adamw"))
    found = [held[rank] for rank in (0, ranks - 1)]
    assert found == _expected("transformer", strategy, options, ranks, "adamw")


def _expected(
    name: str, strategy: str, options: dict[str, Any], ranks: int, optimizer: str
) -> list[dict[str, int]]:
    with torch.device("meta"):
        model = MODELS[name]()
    fitted = fit_strategy(strategy, options, ranks)
    found = memory_of(fitted.strategy, fitted.options, model, ranks, 1)
    expected = []
    for one in (found[0], found[-1]):
        state = OptimizerState(config_of(optimizer=OPTIMIZERS[optimizer]), model).memory(one.shapes)
        assert state.exact
        expected.append(
            {"parameters": one.parameters, "gradients": one.gradients, "optimizer": state.bytes or 0}
        )
    return expected
