"""Which layers make a stage, and in which order a stage does its passes: without any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from dist_train.errors import ConfigError
from dist_train.models.convnet import ConvNet
from dist_train.models.resnet import ResNet
from dist_train.models.transformer import ByteTransformer
from dist_train.strategies.base import place_of
from dist_train.strategies.pipeline import PipelineOptions, PipelineStrategy
from dist_train.strategies.stages.action_order import Action, Schedule, action_order
from dist_train.strategies.stages.model_layers import layers_of
from dist_train.strategies.stages.stage_cut import cut_into_stages


def names(model: nn.Module, stages: int, split: Sequence[str] | None = None) -> list[list[str]]:
    return [[layer.name for layer in stage] for stage in cut_into_stages(model, stages, split).layers]


def linears(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(8, width) for width in widths))


@pytest.mark.parametrize(
    ("model", "stages", "expected"),
    [
        (linears(8, 8, 8, 8), 2, [["0", "1"], ["2", "3"]]),
        (linears(64, 8, 8, 8), 2, [["0"], ["1", "2", "3"]]),
        (linears(8, 8, 8, 64), 2, [["0", "1", "2"], ["3"]]),
        (linears(8, 8, 8), 3, [["0"], ["1"], ["2"]]),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.ReLU(), nn.ReLU()), 2, [["0", "1"], ["2", "3"]]),
    ],
)
def test_without_names_the_largest_stage_is_as_small_as_it_can_be(
    model: nn.Module, stages: int, expected: list[list[str]]
) -> None:
    assert names(model, stages) == expected


def test_named_layers_begin_stages_and_tied_weights_are_in_both() -> None:
    cut = cut_into_stages(ByteTransformer(depth=2), 3, ["blocks.1", "head"])
    assert cut.describe() == "embedding .. blocks.0 | blocks.1 | norm"
    assert cut.stages_of["embedding.weight"] == cut.stages_of["head.weight"] == (0, 2)
    assert cut.stages_of["positions.weight"] == (0,)
    assert cut.stages_of["blocks.1.qkv.weight"] == (1,)


class Custom(nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)
        self._given = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))

    def pipeline_layers(self) -> Any:
        return self._given(self)


@pytest.mark.parametrize(
    ("model", "stages", "split", "words"),
    [
        (linears(8, 8), 3, None, "3 stages, and Sequential has 2 layers"),
        (nn.Linear(2, 2), 2, None, "Linear does not say its layers"),
        (linears(8, 8, 8), 2, ["1", "2"], "makes 3 stages, and there are 2"),
        (linears(8, 8, 8), 2, ["7"], "no layer is called '7'"),
        (linears(8, 8, 8), 3, ["2", "1"], "'1' does not come after"),
        (linears(8, 8, 8), 2, ["0"], "'0' does not come after"),
        (Custom(lambda m: [m.first]), 1, None, "'last.weight' of Custom is in none of its layers"),
        (Custom(lambda m: [m.first, nn.Linear(2, 2)]), 1, None, r"layer 1 \(Linear\) is no module"),
        (Custom(lambda m: [(m.forward, ["first", "lost"])]), 1, None, "uses 'lost', which the model does"),
        (Custom(lambda m: [3]), 1, None, "layer 0 is 3"),
        (Custom(lambda m: []), 1, None, "Custom has no layers"),
    ],
)
def test_what_cannot_be_cut_so_is_refused(
    model: nn.Module, stages: int, split: list[str] | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        cut_into_stages(model, stages, split)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (ByteTransformer(depth=3, dropout=0.0), torch.randint(0, 256, (2, 7))),
        (ConvNet(batch_norm=True), torch.rand(2, 1, 8, 8)),
        (ResNet(), torch.rand(2, 3, 32, 32)),
    ],
    ids=["transformer", "convnet", "resnet"],
)
def test_the_layers_of_our_models_one_after_the_other_are_their_forward(
    model: nn.Module, inputs: torch.Tensor
) -> None:
    value = inputs
    for layer in layers_of(model.eval()):
        value = layer.call(value)
    assert torch.equal(value, model(inputs))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micros"), [(2, 2), (3, 5), (4, 4), (4, 9)])
def test_every_pass_comes_once_and_none_waits_for_a_later_one(
    schedule: Schedule, stages: int, micros: int
) -> None:
    left = [list(action_order(schedule, stage, stages, micros)) for stage in range(stages)]
    kept = [max(_in_flight(actions)) for actions in left]
    assert kept == [micros if schedule == "gpipe" else min(micros, stages - s) for s in range(stages)]
    done: set[tuple[int, Action]] = set()
    while any(left):
        ready = [s for s in range(stages) if left[s] and _can_run(left[s][0], s, stages, done)]
        assert ready, "all stages wait for each other"
        for stage in ready:
            done.add((stage, left[stage].pop(0)))
    assert len(done) == 2 * stages * micros


def _in_flight(actions: list[Action]) -> list[int]:
    signs = [1 if action.kind == "forward" else -1 for action in actions]
    return [sum(signs[: i + 1]) for i in range(len(signs))]


def _can_run(action: Action, stage: int, stages: int, done: set[tuple[int, Action]]) -> bool:
    if action.kind == "forward":
        return stage == 0 or (stage - 1, action) in done
    own = (stage, Action("forward", action.micro)) in done
    return own and (stage == stages - 1 or (stage + 1, action) in done)


def test_places_of_two_pipelines_of_two_stages_over_two_parts() -> None:
    options = PipelineOptions(stage=2, replicate=2, shard=2)
    places = [place_of(PipelineStrategy(), options, rank, 8) for rank in range(8)]
    assert places[0].mesh == (("replicate", 2), ("stage", 2), ("shard", 2))
    assert [place.data_rank for place in places] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [place.counts for place in places] == [False, False, True, True] * 2


@pytest.mark.parametrize(
    ("options", "world", "mesh"),
    [
        ({}, 4, (("stage", 4),)),
        ({"stage": 2}, 4, (("replicate", 2), ("stage", 2))),
        ({"replicate": 2}, 4, (("replicate", 2), ("stage", 2))),
        ({"stage": 2, "shard": 2}, 4, (("stage", 2), ("shard", 2))),
        ({"shard": 3}, 6, (("stage", 2), ("shard", 3))),
    ],
)
def test_sizes_that_are_not_given_follow_from_the_ranks(options: Any, world: int, mesh: Any) -> None:
    assert place_of(PipelineStrategy(), PipelineOptions(**options), 0, world).mesh == mesh


@pytest.mark.parametrize("options", [{"stage": 3}, {"stage": 2, "replicate": 3}, {"shard": 5}, {"stage": 8}])
def test_a_mesh_that_does_not_multiply_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="on 4 ranks"):
        place_of(PipelineStrategy(), PipelineOptions(**options), 0, 4)
