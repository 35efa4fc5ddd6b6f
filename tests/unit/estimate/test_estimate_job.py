"""Rows, verdict and notes of an estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from estimate_cases import config_of
from torch import nn

from dist_train import registry
from dist_train.errors import ConfigError
from dist_train.estimate.candidate_sizes import growing_sizes
from dist_train.estimate.job_estimate import FITTING_PART, JobEstimate
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.ddp import Ddp
from dist_train.strategies.rank_memory import memory_of
from dist_train.strategies.strategy_fit import fit_strategy

FSDP = {"strategy": {"name": "fsdp"}}
WIDE = {
    "target": "dist_train.models.transformer:ByteTransformer",
    "args": {"width": 512, "heads": 8, "depth": 4},
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def job(**sections: Any) -> JobEstimate:
    return JobEstimate(config_of("language_model", **{"model": WIDE, **sections}), on_gpu=True)


def test_a_thousand_ranks_without_a_process_group() -> None:
    rows = job(**FSDP).rows(128, 8)
    assert not torch_dist.is_initialized()
    names = [row.candidate.name for row in rows]
    # Of tensor groups those of 2, 4 and 8 ranks: more would not fit one node.
    assert sorted(names) == ["ddp", "fsdp", *["fsdp_tensor_parallel"] * 3, *["hsdp"] * 9]
    assert (names[0], [row.candidate.is_chosen for row in rows]) == ("fsdp", [True, *[False] * 13])
    assert rows[0].candidate.mesh == (("shard", 1024),)
    assert {row.micro_batch for row in rows} == {1}
    # More rows than ranks have something on the first only.
    first, last = rows[0].ranks
    assert first.parameters == last.parameters
    assert (first.optimizer or 0) > (last.optimizer or 0) > 0


@pytest.mark.proof
def test_activations_of_layers_that_are_cut_are_those_of_a_ranks_part() -> None:
    estimate = job(strategy={"name": "tensor_parallel"})
    whole, halves, quarters = (estimate.rows(1, ranks)[0] for ranks in (1, 2, 4))
    # All ranks compute every sample.
    assert whole.micro_batch == halves.micro_batch == quarters.micro_batch
    saved = [row.ranks[0].activations or 0 for row in (whole, halves, quarters)]
    assert saved[0] > saved[1] > saved[2] > saved[0] / 4
    # What is between the layers is half as much, and a half of that a quarter.
    assert saved[0] - saved[1] == pytest.approx(2 * (saved[1] - saved[2]), rel=0.01)


@pytest.mark.proof
def test_the_fewest_ranks_that_fit() -> None:
    estimate = job()
    single = estimate.rows(1, 1)[0]
    assert estimate.smallest(int(single.peak / FITTING_PART) + 1, 8).candidate.world_size == 1  # type: ignore[union-attr]
    fewer = estimate.smallest(int(single.peak * 0.6), 8)
    assert fewer is not None
    chosen = fewer.candidate
    assert chosen.world_size > 1
    assert fewer.fits(int(single.peak * 0.6))
    before = list(growing_sizes(8))
    smaller = before[before.index((chosen.nodes, chosen.per_node)) - 1]
    assert not any(row.fits(int(single.peak * 0.6)) for row in estimate.rows(*smaller))


def test_growing_sizes() -> None:
    sizes = list(growing_sizes(6))
    assert sizes[:6] == [(1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (4, 6)]


@pytest.mark.proof
def test_autocast_under_sharding_is_named_and_a_dtype_of_the_strategy_is_not() -> None:
    bf16 = {"trainer": {"epochs": 1, "precision": "bf16"}}
    autocast = job(**FSDP, **bf16).rows(1, 4)[0]
    assert any("autocast keeps a whole copy" in note for note in autocast.notes)
    narrow = job(strategy={"name": "fsdp", "param_dtype": "bf16"}).rows(1, 4)[0]
    assert not any("autocast" in note for note in narrow.notes)
    weights = 2 * sum(block.numel() for block in job().parts.model.blocks.parameters())
    assert autocast.ranks[0].activations - narrow.ranks[0].activations > 0.9 * weights


@pytest.mark.proof
def test_gradients_are_whole_while_micro_batches_are_added_up() -> None:
    one, four = (
        job(**FSDP, trainer={"epochs": 1, "accumulate": accumulate}).rows(1, 4)[0] for accumulate in (1, 4)
    )
    whole = 4 * sum(parameter.numel() for parameter in job().parts.model.parameters())
    assert four.ranks[0].gathered - one.ranks[0].gathered == whole
    assert (one.micro_batch, four.micro_batch) == (8, 2)


@pytest.mark.proof
def test_offloaded_parts_are_not_on_the_device() -> None:
    here, there = (job(strategy={"name": "fsdp", "cpu_offload": off}).rows(1, 4)[0] for off in (False, True))
    rank = here.ranks[0]
    assert there.ranks[0].on_host
    assert here.peak - there.peak == rank.parameters + rank.gradients + (rank.optimizer or 0)


def test_a_mesh_that_the_ranks_do_not_make() -> None:
    with pytest.raises(ConfigError, match="replicate 3 on 4 ranks"):
        job(strategy={"name": "hsdp", "replicate": 3}).rows(1, 4)


def test_a_model_that_the_strategy_cannot_spread_is_refused_and_no_candidate() -> None:
    scalar = {"target": "estimate_models:WithScalar"}
    data = {"train": "estimate_models:Rows", "batch_size": 8}
    sections = {"model": scalar, "data": data, "task": None, "loss": "cross_entropy"}
    with pytest.raises(ConfigError, match="single number"):
        job(**sections, **FSDP).rows(1, 4)
    estimate = job(**sections)
    assert [row.candidate.name for row in estimate.rows(1, 4)] == ["ddp"]
    left_out = [note for note in estimate.parts.notes if "is left out" in note]
    # It has no plan of layers to cut: of those strategies nothing is said.
    assert [note.split()[0] for note in left_out] == ["fsdp", "hsdp"]
    assert all("'scale' of WithScalar is a single number" in note for note in left_out)


def test_a_strategy_that_cannot_be_loaded_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names, load = registry.names, registry.load

    def broken(kind: str, name: str) -> object:
        if name == "broken":
            raise ConfigError("the strategy 'broken' cannot be loaded: ImportError: no such library")
        return load(kind, name)

    monkeypatch.setattr(registry, "names", lambda kind: [*names(kind), "broken"])
    monkeypatch.setattr(registry, "load", broken)
    estimate = job()
    assert len(estimate.rows(1, 2)) == 3
    assert [
        note for note in estimate.parts.notes if note.startswith("broken is left out: the strategy 'broken'")
    ]


class Silent(Ddp):
    """A strategy of another package: nothing says what its ranks hold."""

    name = "silent"
    memory = None  # type: ignore[assignment]


class Wrong(Ddp):
    """One that answers with a number."""

    name = "wrong"

    def memory(self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int) -> Any:
        return 3


def test_a_strategy_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"silent": Silent(), "wrong": Wrong()}
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: own.get(name) or load(kind, name))
    model = nn.Linear(3, 5, device="meta", dtype=torch.float64)
    silent = fit_strategy("silent", {}, 4)
    (held,) = memory_of(silent.strategy, silent.options, model, 4, 1)
    assert (held.parameters, held.gradients, held.shapes["weight"]) == (160, 160, (5, 3))
    wrong = fit_strategy("wrong", {}, 4)
    with pytest.raises(ConfigError, match="`memory` of Wrong returns 3"):
        memory_of(wrong.strategy, wrong.options, model, 4, 1)


@pytest.mark.proof
def test_stages_are_compared_where_the_micro_batches_are_enough() -> None:
    trainer = {"accumulate": 4, "steps": 1}
    rows = job(trainer=trainer).rows(1, 8)
    meshes = [row.candidate.mesh for row in rows if row.candidate.name == "pipeline"]
    assert sorted(meshes) == [(("replicate", 2), ("stage", 4)), (("replicate", 4), ("stage", 2))]
    chosen = job(trainer=trainer, strategy={"name": "pipeline", "stage": 4}).rows(1, 8)
    assert [row.candidate.name for row in chosen if row.candidate.is_chosen] == ["pipeline"]
    with pytest.raises(ConfigError, match=r"8 stages, and trainer\.accumulate is 4"):
        job(trainer=trainer, strategy={"name": "pipeline"}).rows(1, 8)
