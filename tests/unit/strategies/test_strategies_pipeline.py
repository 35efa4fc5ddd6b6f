"""The strategy pipeline in loops of one's own: what stages hold, and what is refused."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dist_train as dt
from dist_train.config.schema import ParameterGroup
from dist_train.errors import ConfigError, UsageError
from dist_train.models.transformer import ByteTransformer
from dist_train.strategies.pipeline import PipelineOptions, PipelineStrategy
from dist_train.strategies.stages.pipeline_module import once_per_stage
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed
from dist_train.trainer.parameter_groups import grouped

pytestmark = pytest.mark.multiprocess
BATCHES = [torch.full((2, 3), float(i)) for i in range(1, 5)]


def sequential(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.Linear(4, 3))


def square_sum(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def held_bytes(options: dict[str, Any]) -> tuple[int, int]:
    """Bytes of this rank's parameters, and of its gradients and optimizer state over them."""
    with dt.init(device="cpu", timeout_s=30):
        model = dt.prepare(ByteTransformer(depth=3), "pipeline", **options)
        own = [p for p in model.parameters() if not p.is_meta]
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = [torch.zeros(1, 4, dtype=torch.int64)] * 4
        dt.forward_backward(model, tokens, lambda m, x: m(x).sum(), [1] * 4)
        optimizer.step()
        local = [p.to_local() if hasattr(p, "to_local") else p for p in own]
        assert set(optimizer.state) == set(own)
        assert all(p.grad is None for p in model.parameters() if p.is_meta)
        return sum(p.nbytes for p in local), sum(p.grad.nbytes for p in own if p.grad is not None)


@pytest.mark.proof
@pytest.mark.parametrize("options", [{}, {"stage": 2, "shard": 2}, {"stage": 2}])
def test_parameters_of_each_rank_are_those_that_memory_says(options: dict[str, Any]) -> None:
    found = run_ranks(held_bytes, 4, args=(options,))
    said = PipelineStrategy().memory(PipelineOptions(**options), ByteTransformer(depth=3), 4, 4)
    for one in said:
        assert found[one.rank][0] == one.parameters
    assert said == sorted(said, key=lambda one: -one.parameters - one.gathered)
    assert len(said) == options.get("stage", 4)


def predict() -> tuple[list[float], list[float]]:
    with dt.init(device="cpu", timeout_s=30):
        model = dt.prepare(sequential(nn.Dropout(0.5)), "pipeline").eval()
        with torch.no_grad():
            return model(BATCHES[0]).flatten().tolist(), model(BATCHES[1][:1]).flatten().tolist()


def test_without_gradients_every_rank_gets_the_output() -> None:
    expected = sequential(nn.Dropout(0.5)).eval()
    whole = [expected(x).flatten().tolist() for x in (BATCHES[0], BATCHES[1][:1])]
    for found in run_ranks(predict, 3):
        assert list(found) == whole


def draw() -> tuple[list[float], list[float], list[float]]:
    """Numbers drawn outside of the model, by its layers, and by the loss before it calls the model."""
    with dt.init(device="cpu", seed=3, timeout_s=30):
        masks: list[float] = []

        class Noise(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

            def forward(self, x: Tensor) -> Tensor:
                noise = torch.rand(())
                masks.append(float(noise))
                return x * self.weight * noise

        model = dt.prepare(nn.Sequential(Noise(), Noise()), "pipeline")
        chosen: list[float] = []

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            chosen.append(float(torch.rand(())))  # which tokens are masked: of inputs and of targets
            output = model(x)
            return (output * torch.rand(())).sum()  # on the last stage alone

        outside = [float(torch.rand(()))]
        dt.forward_backward(model, BATCHES, loss, [2] * 4)
        with torch.no_grad():
            model(BATCHES[0])
        return [*outside, float(torch.rand(()))], masks, chosen


def test_stages_draw_unlike_numbers_in_their_layers_and_the_same_ones_elsewhere() -> None:
    (outside, masks, chosen), (outside_too, masks_too, chosen_too) = run_ranks(draw, 2)
    assert (outside, chosen) == (outside_too, chosen_too)
    assert len(set(masks + masks_too)) == 10
    assert len(set(chosen)) == 4
    assert run_ranks(draw, 2)[1] == (outside, masks_too, chosen)


def noise_of_the_loss(evaluating: bool) -> float:
    """The model's input and its loss have the same noise: with the identity as model the loss is 0."""
    with dt.init(device="cpu", seed=3, timeout_s=30):
        layers = [nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 3)]
        for layer in (layers[0], layers[2]):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        model = dt.prepare(nn.Sequential(*layers[:2], nn.Dropout(0.0), layers[2]), "pipeline")

        def loss_sum(model: nn.Module, x: Tensor) -> Tensor:
            noise = torch.randn_like(x) + random.random() + np.random.rand()
            loss = (model(x + noise) - x - noise).abs().sum()
            return loss + 0 * torch.rand(())  # what the last stage draws alone moves nobody

        if evaluating:
            with torch.no_grad():
                found = [once_per_stage(model, partial(loss_sum, model, x)) for x in BATCHES]
            return sum(float(loss) for loss in found if loss is not None)
        return dt.forward_backward(model, BATCHES, loss_sum, [2] * 4)


@pytest.mark.parametrize("evaluating", [False, True])
def test_what_calls_the_model_draws_the_same_numbers_on_every_stage(evaluating: bool) -> None:
    assert run_ranks(noise_of_the_loss, 2, args=(evaluating,)) == pytest.approx([0, 0], abs=1e-4)


class Shifted(nn.Sequential):
    """A model that has a parameter itself."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 3))
        self.shift = nn.Parameter(torch.zeros(3))

    def pipeline_layers(self) -> list[Any]:
        return [(lambda x: self[0](x) + self.shift, ("0", "shift")), self[1]]


def groups_by_class(pattern: str) -> list[int]:
    with dt.init(device="cpu", timeout_s=30):
        model = dt.prepare(Shifted(), "pipeline")
        groups = [ParameterGroup(modules=[pattern], args={"lr": 0.1})]
        return [len(group["params"]) for group in grouped(model, groups)]


def test_parameter_groups_know_the_class_of_the_model_itself() -> None:
    assert run_ranks(groups_by_class, 2, args=("Shifted",)) == [[4, 1]] * 2
    with pytest.raises(RanksFailed, match="no module with parameters is a 'Pipeline"):
        run_ranks(groups_by_class, 2, args=("Pipeline*",))


def buffers_of_copies() -> tuple[list[float], int]:
    with dt.init(device="cpu", timeout_s=30) as run:
        norm = nn.BatchNorm1d(4)
        model = dt.prepare(sequential(norm), "pipeline", stage=2)
        share = run.place.data_rank + 1
        dt.forward_backward(model, [x * share for x in BATCHES], square_sum, [2] * 4)
        if norm.running_mean is None or norm.running_mean.is_meta:
            return [], share
        return norm.running_mean.tolist(), share


def test_copies_of_a_stage_have_the_buffers_of_the_first() -> None:
    found = [means for means, _ in run_ranks(buffers_of_copies, 4) if means]
    assert len(found) == 2
    assert found[0] == found[1]


def refused_everywhere() -> list[str]:
    said = []
    with dt.init(device="cpu", timeout_s=30):
        model = dt.prepare(sequential(), "pipeline")
        for loss, batches in ((square_sum, BATCHES[:1]), (lambda m, x: x.sum(), BATCHES)):
            with pytest.raises(UsageError) as caught:
                dt.forward_backward(model, batches, loss, [2] * len(batches))
            said.append(str(caught.value))
        with pytest.raises(UsageError, match="gradients are enabled"):
            model(BATCHES[0])
        with pytest.raises(ConfigError, match="wrapped already"):
            dt.prepare(model, "pipeline")
    return said


def test_too_few_batches_and_a_model_that_is_not_called_are_refused_on_all_ranks() -> None:
    for few, never in run_ranks(refused_everywhere, 2):
        assert "a step of 1 micro-batches on a pipeline of 2 stages" in few
        assert "does not call its model" in never


def placeholders(counted: bool) -> list[float]:
    """Three samples in the last step of an epoch, and four micro-batches; mean losses of the steps."""
    with dt.init(device="cpu", seed=0, timeout_s=10) as run:
        model = dt.prepare(sequential(), "pipeline")
        samples = torch.utils.data.TensorDataset(torch.arange(21.0).reshape(7, 3))
        data = dt.loader(samples, 4, shuffle=False, accumulate=4)
        found, batches, units = [], [], []
        for (x,) in data:
            batches.append(x)
            units.append(len(x) if counted else run.batch_weight.local)
            if data.step_complete:
                found.append(dt.forward_backward(model, batches, square_sum, units))
                model.zero_grad()
                batches, units = [], []
        own = [torch.ones(1, 3)] * 4  # no batches of the loader: nothing is known of them
        return [*found, dt.forward_backward(model, own, square_sum, [1] * 4)]


def test_the_sample_of_a_placeholder_is_not_counted() -> None:
    whole, samples = sequential(), torch.arange(21.0).reshape(7, 3)
    expected = [square_sum(whole, x).item() / len(x) for x in (samples[:4], samples[4:], torch.ones(1, 3))]
    assert run_ranks(placeholders, 2, args=(False,))[0] == pytest.approx(expected)
    with pytest.raises(RanksFailed) as caught:
        run_ranks(placeholders, 2, args=(True,), after_failure_s=2)
    assert "placeholder, which counts no sample" in caught.value.tracebacks[0]


def two_calls(zeros: bool) -> None:
    with dt.init(device="cpu", seed=0, timeout_s=10):
        model = dt.prepare(sequential(), "pipeline")
        dt.forward_backward(model, BATCHES, square_sum, [2] * 4)
        if zeros:
            model.zero_grad(set_to_none=False)
        dt.forward_backward(model, BATCHES, square_sum, [2] * 4)


def test_a_second_call_before_the_gradients_are_cleared_is_refused() -> None:
    run_ranks(two_calls, 2, args=(True,))
    with pytest.raises(RanksFailed) as caught:
        run_ranks(two_calls, 2, args=(False,), after_failure_s=2)
    assert "gradients of an earlier one are there" in caught.value.tracebacks[0]


def unlike_stages(what: str) -> None:
    with dt.init(device="cpu", seed=0, timeout_s=10) as run:
        model = dt.prepare(sequential(), "pipeline")
        if what == "batches":
            own = torch.utils.data.DistributedSampler(range(8), run.world_size, run.rank)
            batches = [torch.full((1, 3), float(i)) for i in own]
        else:
            batches = BATCHES
            if run.is_main:
                torch.rand(1)
        dt.forward_backward(model, batches, square_sum, [1] * 4)


@pytest.mark.parametrize("what", ["batches", "random numbers"])
def test_stages_that_read_or_draw_something_else_are_refused(what: str) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(unlike_stages, 2, args=(what,), after_failure_s=2)
    assert f"unlike {what}" in caught.value.tracebacks[1]


def refused_by_the_last_stage(loss: str) -> None:
    losses = {
        "twice": lambda m, x: (m(x) + m(x)).sum(),
        "parameters": lambda m, x: m(x).sum() + m[0].weight.sum(),
        "detached": lambda m, x: m(x).detach().sum(),
    }
    with dt.init(device="cpu", timeout_s=10):
        model = dt.prepare(sequential(), "pipeline")
        dt.forward_backward(model, BATCHES, losses[loss], [2] * 4)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("twice", "calls its model more than once"),
        ("parameters", "reads parameters of the model, and other stages hold some"),
        ("detached", "does not depend on what model(...) returns"),
    ],
)
def test_a_loss_that_a_pipeline_cannot_compute_ends_all_ranks(loss: str, words: str) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(refused_by_the_last_stage, 2, args=(loss,), after_failure_s=2)
    assert words in caught.value.tracebacks[1]


class Pair(nn.Module):
    """Passes two tensors on, one of them without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)])

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.last(self.middle(self.first(x, scale)))

    def first(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return self.layers[0](x) * scale, x > 1

    def middle(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.layers[1](pair[0].mul_(3)), pair[1]  # in place, as nn.ReLU(inplace=True) does it

    def last(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.layers[2](pair[0] * pair[1])

    def pipeline_layers(self) -> list[Any]:
        calls = (self.first, self.middle, self.last)
        return [(call, f"layers.{i}") for i, call in enumerate(calls)]


def pair_gradients(strategy: str) -> dict[str, list[float]]:
    with dt.init(device="cpu", timeout_s=30):
        torch.manual_seed(0)
        model = dt.prepare(Pair(), strategy)
        uneven = [BATCHES[0], BATCHES[1][:1], BATCHES[2]]
        mean = dt.forward_backward(model, uneven, lambda m, x: m(x, scale=2.0).square().sum(), [2, 1, 0])
        own = {n: p.grad.flatten().tolist() for n, p in model.named_parameters() if p.grad is not None}
        return {"mean": [mean], **own}


def test_tuples_keywords_and_uneven_batches_have_the_gradients_of_one_process() -> None:
    (expected,) = run_ranks(pair_gradients, 1, args=("ddp",))
    stages = run_ranks(pair_gradients, 3, args=("pipeline",))
    found = {name: values for stage in stages for name, values in stage.items()}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name


def compiled() -> None:
    with dt.init(device="cpu", timeout_s=30), pytest.raises(ConfigError, match="is compiled"):
        dt.prepare(torch.compile(sequential(), backend="eager"), "pipeline")


def test_a_compiled_model_is_refused() -> None:
    run_ranks(compiled, 2)
