"""Strategies tensor_parallel and fsdp_tensor_parallel: what a rank holds, what they compute and refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensor_models import PLAN, VOCABULARY, Tied, made
from torch import nn
from torch.nn import functional

import dist_train as dt
from dist_train.distributed.parameter_shards import own_part
from dist_train.errors import ConfigError, UsageError
from dist_train.models.transformer import ByteTransformer
from dist_train.strategies.base import places_of
from dist_train.strategies.prepare import check_options, load_strategy
from dist_train.strategies.strategy_fit import fit_strategy
from dist_train.strategies.tensor_cut.tensor_plan import check_plan, plan_cuts
from dist_train.testing import run_ranks

BOTH = [("tensor_parallel", 2, 2, 1), ("fsdp_tensor_parallel", 4, 2, 2)]


def held(strategy: str, plan: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes of this rank's parameters and of its optimizer's state; its rank."""
    with dt.init(device="cpu", timeout_s=20) as run:
        model = dt.prepare(made(), strategy, plan=plan)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
        optimizer.step()
        state = [value for each in optimizer.state.values() for value in each.values()]
        parts = (sum(own_part(one.detach()).nbytes for one in some) for some in (model.parameters(), state))
        return (*parts, run.rank)


def closed_form(plan: dict[str, Any], tensor: int, shard: int, group: int) -> int:
    """Bytes of a rank: of a cut parameter 1 / tensor, then equal chunks of rows, the last ones shorter."""
    cut = {"gated.weight": 0, "gated.bias": 0, "down.weight": 1}
    if "embedding" in plan:
        cut["embedding.weight"] = 0
    total = 0
    for name, parameter in made().named_parameters():
        shape = list(parameter.shape)
        if name in cut:
            shape[cut[name]] //= tensor
        size = -(-shape[0] // shard)
        shape[0] = max(0, min(shape[0], (group + 1) * size) - group * size)
        total += torch.Size(shape).numel() * parameter.element_size()
    return total


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.proves(
    "tensor_parallel and fsdp_tensor_parallel: bytes of parameters and optimizer per rank are those of the "
    "closed form"
)
@pytest.mark.parametrize("plan", [PLAN, VOCABULARY], ids=["plan", "vocabulary"])
@pytest.mark.parametrize(("strategy", "ranks", "tensor", "shard"), [*BOTH, ("tensor_parallel", 3, 3, 1)])
def test_a_rank_holds_its_part(
    strategy: str, ranks: int, tensor: int, shard: int, plan: dict[str, Any]
) -> None:
    for parameters, state, rank in run_ranks(held, ranks, args=(strategy, plan)):
        assert parameters == closed_form(plan, tensor, shard, rank // tensor)
        # Two moments, and the number of the step (4 bytes) of each parameter.
        assert state == 2 * parameters + 4 * len(list(made().parameters()))


def own_loop(strategy: str, options: dict[str, Any], optimizer: dict[str, Any]) -> list[tuple[float, float]]:
    """A loop of the user's own over dt.loader: uneven and empty shares, two micro-batches, clipping."""
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        model = dt.prepare(made(), strategy, **options)
        stepped = torch.optim.AdamW(model.parameters(), lr=0.05, **optimizer)
        tokens = torch.randint(0, 12, (13, 4), generator=torch.Generator().manual_seed(3))
        data = dt.loader(torch.utils.data.TensorDataset(tokens), 5, shuffle=False, accumulate=2)
        found, total, count = [], 0.0, 0
        for number, micro in enumerate(data.micro_batches()):
            (x,) = micro.batch
            loss = functional.cross_entropy(model(x).flatten(0, 1), x.flatten(), reduction="sum")
            run.backward(loss, units=4 * micro.count)
            total, count = total + (float(loss.detach()) if micro.count else 0.0), count + 4 * micro.count
            if number % 2:
                norm = float(dt.clip_grad_norm_(model, 0.5))
                stepped.step()
                stepped.zero_grad()
                found.append((run.mean(total, count), norm))
                total, count = 0.0, 0
        return found


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "optimizer", [{}, {"fused": True}, {"foreach": True}], ids=["loop", "fused", "foreach"]
)
@pytest.mark.parametrize(("strategy", "ranks", "tensor", "shard"), BOTH)
def test_own_loops_over_our_loader_train_as_one_process(
    strategy: str, ranks: int, tensor: int, shard: int, optimizer: dict[str, Any]
) -> None:
    (expected,) = run_ranks(own_loop, 1, args=("single", {}, {}))
    assert len(expected) == 3
    for found in run_ranks(own_loop, ranks, args=(strategy, {"plan": VOCABULARY}, optimizer)):
        for step, wanted in zip(found, expected, strict=True):
            assert step == pytest.approx(wanted, rel=1e-9)


@pytest.mark.multiprocess
def test_a_layer_may_be_a_unit_by_itself() -> None:
    """A rowwise one has a bias that is added once, to the sum."""
    (expected,) = run_ranks(own_loop, 1, args=("single", {}, {}))
    options = {"plan": PLAN, "units": ["gated", "down"]}
    for found in run_ranks(own_loop, 2, args=("fsdp_tensor_parallel", options, {})):
        for step, wanted in zip(found, expected, strict=True):
            assert step == pytest.approx(wanted, rel=1e-9)


def transformer_loss(strategy: str, precision: torch.dtype | None) -> tuple[float, list[float]]:
    """Loss of the byte-level transformer after three steps, and its attention's weights' norms."""
    with dt.init(device="cpu", seed=0, timeout_s=60):
        torch.manual_seed(0)
        plain = ByteTransformer(vocab=16, width=24, depth=1, heads=6, context=8, dropout=0.0)
        model = dt.prepare(plain, strategy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        tokens = torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(5))
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
                loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            norm = dt.clip_grad_norm_(model, 100.0)
            optimizer.step()
        with torch.no_grad():
            model.eval()(tokens)
        return float(loss.detach()), [float(norm)]


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize(("strategy", "ranks"), [("tensor_parallel", 2), ("tensor_parallel", 3)])
def test_attention_is_cut_by_heads(strategy: str, ranks: int, precision: torch.dtype | None) -> None:
    ((loss, norms),) = run_ranks(transformer_loss, 1, args=("single", precision))
    # bf16 keeps 8 bits, and the sums of three steps are rounded elsewhere.
    tolerance = 1e-5 if precision is None else 0.05
    for found, found_norms in run_ranks(transformer_loss, ranks, args=(strategy, precision)):
        assert found == pytest.approx(loss, rel=tolerance)
        assert found_norms == pytest.approx(norms, rel=tolerance)


def first_steps(plant: str) -> str:
    """What the first training step says."""
    with dt.init(device="cpu", seed=0, timeout_s=20) as run:
        model = dt.prepare(made(drop=0.3), "tensor_parallel", plan=PLAN)
        tokens = torch.zeros(2, 3, dtype=torch.long)
        if plant == "a seed by rank":
            torch.manual_seed(run.rank)
        if plant == "samples by rank":
            tokens = tokens + run.rank
        if plant == "shorter samples":
            tokens = tokens[: 2 - run.rank]
        try:
            model(tokens).sum().backward()
        except UsageError as error:
            return f"{error} {error.hint}"
        return "trained"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("nothing", "trained"),
        ("a seed by rank", "unlike outputs from equal inputs in the first training step"),
        ("samples by rank", "unlike inputs in the first training step"),
        ("shorter samples", "unlike inputs in the first training step"),
    ],
)
def test_ranks_of_a_group_with_unlike_samples_or_seeds_are_refused_before_the_first_step(
    plant: str, said: str
) -> None:
    for found in run_ranks(first_steps, 2, args=(plant,)):
        assert said in found
        assert plant == "nothing" or "run.place.data_rank" in found or "dt.init(seed" in found


class _Fused(nn.Module):
    """Two layers in one weight, which a view separates; the layer after them begins with zeros."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        self.gated, self.down, self.normed = nn.Linear(6, 24), nn.Linear(12, 6), normed
        nn.init.zeros_(self.down.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.gated(x).unflatten(-1, (2, -1)).unbind(-2)
        hidden = gate.tanh() * value
        if self.normed:
            hidden = hidden / hidden.norm(dim=-1, keepdim=True)
        return x + self.down(hidden)


def wrong_plan(strategy: str, style: str, normed: bool) -> str:
    with dt.init(device="cpu", seed=0, timeout_s=20):
        torch.manual_seed(0)
        model = dt.prepare(_Fused(normed), strategy, plan={"gated": style, "down": "rowwise"})
        try:
            model(torch.randn(5, 6, generator=torch.Generator().manual_seed(1))).sum().backward()
        except UsageError as error:
            return f"{error} {error.hint}"
        return "trained"


@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "ranks", "tensor", "shard"), BOTH)
@pytest.mark.parametrize(
    ("style", "normed", "said"),
    [
        ("fused_colwise:2", False, "trained"),
        ("colwise", False, "'down'"),
        ("fused_colwise:2", True, "'down'"),
    ],
)
def test_a_plan_that_computes_something_else_is_refused_before_the_first_step(
    strategy: str, ranks: int, tensor: int, shard: int, style: str, normed: bool, said: str
) -> None:
    for found in run_ranks(wrong_plan, ranks, args=(strategy, style, normed)):
        assert said in found
        assert said == "trained" or "the plan does not compute what" in found


def test_ranks_of_a_group_have_one_share_of_the_data() -> None:
    strategy = load_strategy("fsdp_tensor_parallel")
    places = places_of(strategy, strategy.Options(tensor=2), 4)
    assert [(p.data_rank, p.data_size, p.counts) for p in places] == [
        (0, 2, True),
        (0, 2, False),
        (1, 2, True),
        (1, 2, False),
    ]
    assert places[0].mesh == (("shard", 2), ("tensor", 2))


@pytest.mark.parametrize(
    ("options", "ranks", "said"),
    [
        ({"tensor": 2}, 3, "fsdp_tensor_parallel: tensor 2 on 3 ranks"),
        ({"tensor": 2, "shard": 3}, 4, "fsdp_tensor_parallel: shard 3 x tensor 2 on 4 ranks"),
        ({"tensor": 8}, 4, "fsdp_tensor_parallel: tensor 8 on 4 ranks"),
    ],
)
def test_a_mesh_that_does_not_multiply_to_the_ranks_is_refused(
    options: dict[str, Any], ranks: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_strategy("fsdp_tensor_parallel", options, ranks)


def transformer(**sizes: int) -> nn.Module:
    with torch.device("meta"):
        return ByteTransformer(**{"vocab": 16, "width": 24, "depth": 2, "heads": 6, **sizes})


@pytest.mark.parametrize(
    ("plan", "said", "hint"),
    [
        ({"blocks.*.qk": "colwise"}, "'blocks.*.qk' names no module of ByteTransformer", "blocks.*.qkv"),
        ({"blocks.*": "colwise"}, "names 'blocks.0', a _Block", "name the layers themselves"),
        ({"norm": "rowwise"}, "names 'norm', a LayerNorm", ""),
        ({"head": "colwise"}, "'embedding.weight' and 'head.weight' are one parameter", "leave both out"),
        ({"embedding": "embedding", "head": "rowwise"}, "by rows and 'head.weight' by columns", "leave both"),
        ({"*.qkv": "colwise", "blocks.0.*v": "rowwise"}, "both name 'blocks.0.qkv'", ""),
        ({"*.qkv": "fused_colwise:5"}, "72 rows, which are not 5 layers", "fused_colwise:3"),
        ({"*.qkv": {"style": "fused_colwise", "parts": 3, "block": 8}}, "24 rows in 3 fused layers", ""),
    ],
)
def test_a_plan_that_cannot_work_is_refused_by_shapes_alone(
    plan: dict[str, Any], said: str, hint: str
) -> None:
    options: Any = check_options(load_strategy("tensor_parallel"), {"plan": plan})
    with pytest.raises(ConfigError) as caught:
        plan_cuts(transformer(), options.plan, 2)
    assert said in f"{caught.value} {caught.value.cause}"
    assert hint in (caught.value.hint or "")


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"3 fused layers, in blocks of 4 \(6 of them\).* 4 ranks"):
        plan_cuts(transformer(), None, 4)
    assert len(plan_cuts(transformer(), None, 3).layers) == 8


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="Tied has no plan") as caught:
        plan_cuts(Tied(), None, 2)
    assert "tensor_parallel_plan()" in (caught.value.hint or "")


@pytest.mark.parametrize("style", ["colwize", {"style": "colwise", "part": 2}, "fused_colwise:x"])
def test_a_style_that_is_not_known_is_refused(style: Any) -> None:
    with pytest.raises(ConfigError, match="plan"):
        check_options(load_strategy("tensor_parallel"), {"plan": {"gated": style}})
    with pytest.raises(ConfigError, match="'gated'"):
        check_plan({"gated": style}, "the plan of Tied")


def test_plans_of_transformers_are_taken() -> None:
    model = Tied()
    model._tp_plan = {"gated": "colwise", "down": "rowwise"}
    assert [layer.style.style for layer in plan_cuts(model, None, 2).layers] == ["colwise", "rowwise"]


def reached_into(strategy: str) -> list[float]:
    """A model whose forward reads a child's weight itself."""
    with dt.init(device="cpu", seed=0, timeout_s=20):
        model = dt.prepare(_Reaching(), strategy, plan={"up": "colwise", "down": "rowwise"})
        model(torch.ones(2, 4)).sum().backward()
        gradient: Any = model.table.weight.grad
        return own_part(gradient)[0].tolist()  # type: ignore[no-any-return]


class _Reaching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.up, self.down = nn.Embedding(4, 4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x + self.down(self.up(x)), self.table.weight)


@pytest.mark.multiprocess
def test_a_weight_that_another_module_reads_is_whole_there() -> None:
    found = run_ranks(reached_into, 2, args=("tensor_parallel",))
    model = _Reaching()
    model(torch.ones(2, 4)).sum().backward()
    assert model.table.weight.grad is not None
    assert found[0] == pytest.approx(model.table.weight.grad[0].tolist(), rel=1e-5)
    assert found[0] == found[1]
