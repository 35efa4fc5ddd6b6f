"""Strategies fsdp and hsdp: what a rank holds, what is refused, and what is seen before it is too late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # it sets an environment variable: not inside a test
from torch import nn
from torch.distributed.fsdp import FSDPModule

import dist_train as dt
from dist_train.errors import ConfigError, DistTrainError, UsageError
from dist_train.strategies.base import places_of
from dist_train.strategies.fsdp import FsdpOptions
from dist_train.strategies.fully_sharded.parameter_sharding import ShardingOptions
from dist_train.strategies.hsdp import STRATEGY as HSDP
from dist_train.strategies.hsdp import HsdpOptions
from dist_train.strategies.prepare import check_options, load_strategy
from dist_train.testing import run_ranks


class Net(nn.Module):
    """Two layers in a list, and parameters that ranks cannot share evenly."""

    def __init__(self, even: bool = False) -> None:
        super().__init__()
        inner = 6 if even else 5
        self.layers = nn.ModuleList([nn.Linear(3, inner), nn.Linear(inner, 7)])
        self.norm = nn.BatchNorm1d(7)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.norm(x) * self.scale
        return out


def local_bytes(tensor: Any) -> int:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.nbytes


def held(strategy: str, options: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes of this rank's parameters and of its optimizer's state; its place among the parts."""
    with dt.init(device="cpu", timeout_s=20) as run:
        model = dt.prepare(Net(), strategy, **options)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        state = [value for each in optimizer.state.values() for value in each.values()]
        return (
            sum(map(local_bytes, model.parameters())),
            sum(map(local_bytes, state)),
            run.rank % options.get("shard", run.world_size),
        )


def closed_form(part: int, parts: int) -> int:
    """Bytes of the rows of part `part` of `parts`: equal chunks of rows, the last ones shorter or empty."""
    total = 0
    for parameter in Net().parameters():
        rows = parameter.shape[0]
        size = -(-rows // parts)
        own = max(0, min(rows, (part + 1) * size) - part * size)
        total += own * (parameter.numel() // rows) * parameter.element_size()
    return total


@pytest.mark.first_cases(2)
@pytest.mark.multiprocess
@pytest.mark.proves("fsdp and hsdp: bytes of parameters and optimizer per rank are those of the closed form")
@pytest.mark.parametrize(
    ("strategy", "ranks", "options"),
    [("fsdp", 2, {}), ("fsdp", 3, {}), ("fsdp", 4, {}), ("hsdp", 4, {"replicate": 2, "shard": 2})],
)
def test_a_rank_holds_its_part(strategy: str, ranks: int, options: dict[str, Any]) -> None:
    for parameters, state, part in run_ranks(held, ranks, args=(strategy, options)):
        assert parameters == closed_form(part, options.get("shard", ranks))
        # Two moments, and the number of the step (4 bytes) of each parameter.
        assert state == 2 * parameters + 4 * len(list(Net().parameters()))


def refusal(what: str) -> str:
    """What is said on this rank."""
    with dt.init(device="cpu", timeout_s=20) as run:
        model: nn.Module = Net()
        options: dict[str, Any] = {}
        if what == "a single number":
            model.scale = nn.Parameter(torch.ones(()))
        if what == "not contiguous":
            model.layers[0].weight = nn.Parameter(torch.ones(3, 5).t())
        if what == "nothing to train":
            model.requires_grad_(False)
        if what == "unlike models":
            model.layers.append(nn.Linear(7, 7 + run.rank))
        if what == "unlike units":
            options = {"units": ["Linear"], "unit_parameters": 3}
        if what == "offload on a CPU":
            options = {"cpu_offload": True}
        if what == "twice":
            model = dt.prepare(model, "fsdp")
        with pytest.raises(ConfigError) as caught:
            dt.prepare(model, "fsdp", **options)
        return str(caught.value)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a single number", "'scale' of Net is a single number"),
        ("not contiguous", "'layers.0.weight' of Net is not contiguous"),
        ("nothing to train", "no parameter that requires a gradient"),
        ("unlike models", "the ranks have unlike models: layers.2.weight torch.float32 (7, 7)"),
        ("unlike units", "says what a unit is too: give one of them"),
        ("offload on a CPU", "cpu_offload=True, and the model is trained on a CPU"),
        ("twice", "is wrapped already"),
    ],
)
def test_a_model_that_cannot_be_sharded_is_refused_on_every_rank(what: str, said: str) -> None:
    for each in run_ranks(refusal, 2, args=(what,)):
        assert said in each


def optimizer_after_a_forward(backward: bool, strategy: str = "fsdp") -> str:
    """What the first step says where the optimizer is built while parameters are gathered."""
    with dt.init(device="cpu", timeout_s=20):
        plan = {"plan": {"layers.0": "colwise_gathered"}} if strategy == "fsdp_tensor_parallel" else {}
        model = dt.prepare(Net(even=True) if plan else Net(), strategy, **plan)
        loss = model(torch.randn(4, 3)).sum()
        if backward:
            loss.backward()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.randn(4, 3)).sum().backward()
        before = [p.detach().clone() for p in model.parameters()]
        try:
            optimizer.step()
        except UsageError as error:
            same = all(torch.equal(*map(_own, pair)) for pair in zip(before, model.parameters(), strict=True))
            return f"{error} unchanged={same}"
        return "nothing"


def _own(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local().detach()
    return found


@pytest.mark.multiprocess
def test_an_optimizer_of_gathered_parameters_is_refused_before_its_first_step() -> None:
    for said in run_ranks(optimizer_after_a_forward, 2, args=(False,)):
        assert "the optimizer holds 3 whole parameters of a sharded model" in said
        assert "unchanged=True" in said
    assert run_ranks(optimizer_after_a_forward, 2, args=(True,)) == ["nothing"] * 2


@pytest.mark.multiprocess
@pytest.mark.proof
@pytest.mark.parametrize("strategy", ["hsdp", "fsdp_tensor_parallel"])
def test_so_is_one_where_parameters_are_spread_over_two_dimensions(strategy: str) -> None:
    for said in run_ranks(optimizer_after_a_forward, 4, args=(False, strategy)):
        assert "whole parameters of a sharded model" in said
        assert "unchanged=True" in said
    assert run_ranks(optimizer_after_a_forward, 4, args=(True, strategy)) == ["nothing"] * 4


def unused_on_one_rank() -> list[float]:
    """Train with a branch that one rank alone takes; what the branch's weights come to."""
    with dt.init(device="cpu", timeout_s=20) as run:
        torch.manual_seed(0)
        model = dt.prepare(Branches(), "fsdp", units=[])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3), run.rank == 1).sum().backward()
            optimizer.step()
        whole: torch.Tensor = model.other.weight.full_tensor()
        return whole.detach().flatten().tolist()  # type: ignore[no-any-return]


class Branches(nn.Module):
    """One of two layers, as the caller says."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, second: bool) -> torch.Tensor:
        # Both are called, as every rank must: the result of one is left out.
        first, other = self.one(x), self.other(x)
        return other if second else first


@pytest.mark.multiprocess
def test_a_parameter_without_a_gradient_on_one_rank_counts_as_zero_there() -> None:
    torch.manual_seed(0)
    start = Branches().other.weight.detach()
    # The gradient of the sum over 2 rows of ones is 2; the mean over two ranks 1; three steps of 0.1.
    expected = (start - 0.3).flatten().tolist()
    for found in run_ranks(unused_on_one_rank, 2):
        assert found == pytest.approx(expected)


def buffers(broadcast: bool) -> tuple[list[float], list[float]]:
    """Rank 1's running mean before and after a forward pass that changes nothing."""
    with dt.init(device="cpu", timeout_s=20) as run:
        model = dt.prepare(Net(), "fsdp", broadcast_buffers=broadcast)
        model(torch.full((4, 3), float(run.rank)) + torch.arange(12.0).view(4, 3))
        before = model.norm.running_mean.tolist()
        with torch.no_grad():
            model.eval()(torch.ones(4, 3))
        return before, model.norm.running_mean.tolist()


@pytest.mark.multiprocess
@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers_are_rank_zeros_before_each_forward_or_each_ranks_own(broadcast: bool) -> None:
    (of_zero, _), (of_one, after) = run_ranks(buffers, 2, args=(broadcast,))
    assert of_zero != of_one
    assert after == (of_zero if broadcast else of_one)


def units_of_compiled(options: dict[str, Any]) -> list[str]:
    """Names of the units inside of a compiled model."""
    with dt.init(device="cpu", timeout_s=20):
        net = Net()
        dt.prepare(torch.compile(net, backend="eager"), "fsdp", **options)
        return [name for name, module in net.named_modules() if isinstance(module, FSDPModule)]


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{"units": ["layers.*"]}, {"unit_parameters": 15}])
def test_units_of_a_compiled_model_have_the_names_of_the_program(options: dict[str, Any]) -> None:
    assert run_ranks(units_of_compiled, 2, args=(options,)) == [["layers.0", "layers.1"]] * 2


@pytest.mark.parametrize(
    ("options", "ranks", "said"),
    [
        ({"replicate": 2}, 3, "strategy hsdp: replicate 2 on 3 ranks"),
        ({"replicate": 2, "shard": 3}, 4, "strategy hsdp: replicate 2 x shard 3 on 4 ranks"),
        ({"replicate": 8}, 4, "strategy hsdp: replicate 8 on 4 ranks"),
    ],
)
def test_a_mesh_that_does_not_multiply_to_the_ranks_is_refused(
    options: dict[str, int], ranks: int, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        places_of(HSDP, HsdpOptions(**options), ranks)
    assert said in str(caught.value)


def test_each_rank_has_data_of_its_own() -> None:
    places = places_of(HSDP, HsdpOptions(replicate=2), 4)
    assert [(place.data_rank, place.data_size, place.counts) for place in places] == [
        (rank, 4, True) for rank in range(4)
    ]
    assert places[0].mesh == (("replicate", 2), ("shard", 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unit": ["Block"]}, "did you mean 'units'?"),
        ({"param_dtype": "fp16"}, "param_dtype"),
        ({"unit_parameters": 0}, "unit_parameters"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DistTrainError) as caught:
        check_options(load_strategy("fsdp"), options)
    assert said in f"{caught.value} {caught.value.hint}"


def test_the_options_of_both_are_the_same_but_for_the_mesh() -> None:
    assert set(FsdpOptions.model_fields) == set(ShardingOptions.model_fields)
    assert set(HsdpOptions.model_fields) - set(FsdpOptions.model_fields) == {"replicate", "shard"}


def in_bf16(reduce: str | None) -> tuple[str, str, str]:
    with dt.init(device="cpu", timeout_s=20):
        # The first layer is a unit, the second in the rest.
        net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model = dt.prepare(net, "fsdp", param_dtype="bf16", reduce_dtype=reduce, units=["0"])
        out = model(torch.randn(4, 3))
        out.sum().backward()
        parameter = net[0].weight
        return str(out.dtype), str(parameter.dtype), str(parameter.grad.dtype)


@pytest.mark.multiprocess
@pytest.mark.parametrize("reduce", [None, "fp32"])
def test_computed_in_bf16_the_shards_and_the_output_stay_fp32(reduce: str | None) -> None:
    assert run_ranks(in_bf16, 2, args=(reduce,)) == [("torch.float32",) * 3] * 2
