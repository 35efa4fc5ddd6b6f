"""`trainer.activation_checkpointing`: losses and weights keep their bits, checkpoints their names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from block_cases import Net, config, trained
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError
from dist_train.estimate.activation_memory import activation_memory, measure
from dist_train.rundir.directory import RunDir
from dist_train.testing import run_ranks
from dist_train.trainer.build_components import make_model, recompute_activations
from dist_train.trainer.task import NextTokenTask, SupervisedTask

AUTO = "trainer.activation_checkpointing={}"
HSDP = "strategy={name: hsdp, options: {replicate: 2}}"


@pytest.mark.first_cases(2)
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("ranks", "strategy"), [(1, "strategy=ddp"), (2, "strategy=ddp"), (2, "strategy=fsdp"), (2, HSDP)]
)
def test_a_run_keeps_its_bits_and_names(tmp_path: Path, ranks: int, strategy: str) -> None:
    kept, again = (
        run_ranks(trained, ranks, 60, args=(tmp_path / name, (strategy, *changes)))[0]
        for name, changes in (("kept", ()), ("again", (AUTO,)))
    )
    assert again["losses"] == kept["losses"]
    # The hash covers the names of weights and of optimizer state.
    assert (again["weights"], again["state"]) == (kept["weights"], kept["state"])


def test_running_statistics_are_updated_once_per_step(tmp_path: Path) -> None:
    norm = "model={target: 'block_cases:Net', args: {norm: true}}"
    kept, again = (
        run_ranks(trained, 1, 60, args=(tmp_path / name, (norm, "trainer.accumulate=1", *changes)))[0]
        for name, changes in (("kept", ()), ("again", (AUTO,)))
    )
    assert again["weights"] == kept["weights"]


def step(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    model(torch.ones(5, 1)).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_an_own_loop_has_the_same_gradients_and_the_blocks_run_twice() -> None:
    plain = Net()
    model = dt.checkpoint_activations(copy.deepcopy(plain), ["Block"])
    calls: list[Any] = []
    model.layers[0].inner.register_forward_hook(lambda *given: calls.append(given))
    assert all(torch.equal(a, b) for a, b in zip(step(model), step(plain), strict=True))
    assert len(calls) == 2
    with torch.no_grad():
        model(torch.ones(5, 1))
    assert len(calls) == 3
    assert model.state_dict().keys() == plain.state_dict().keys()


class Shifted(nn.Linear):
    """Its keywords have the names of those of torch.utils.checkpoint."""

    def forward(self, x: torch.Tensor, *, debug: bool = False, function: float = 1.0) -> torch.Tensor:
        return super().forward(x) * function + 100 * debug


def test_a_module_gets_its_keywords_whatever_their_names() -> None:
    plain = Shifted(2, 2)
    model = dt.checkpoint_activations(nn.ModuleList([copy.deepcopy(plain)]))[0]  # type: ignore[index]
    x = torch.ones(3, 2)
    assert torch.equal(model(x, debug=True, function=2.0), plain(x, debug=True, function=2.0))


def test_a_copy_of_the_model_computes_with_its_own_weights() -> None:
    model = dt.checkpoint_activations(Net(), ["layers.*"])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layers[0].inner.weight.zero_()
    other.eval(), model.eval()
    assert not torch.equal(other(torch.ones(2, 1)), model(torch.ones(2, 1)))


@pytest.mark.parametrize(
    ("model", "modules", "message"),
    [
        (Net(), ["Blok"], r"(?s)modules: 'Blok' is neither .* did you mean 'Block'"),
        (Net(), ["layers"], "names 'layers', a ModuleList"),
        (Net(), "Block", "is no list of names"),
        (nn.Linear(1, 1), "auto", "Linear has no ModuleList"),
        (dt.checkpoint_activations(Net()), "auto", "'layers.0' checkpoints its activations already"),
    ],
)
def test_what_does_not_fit_is_refused(model: nn.Module, modules: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dt.checkpoint_activations(model, modules)


def test_a_wrong_name_in_a_config_ends_the_run_before_a_step(tmp_path: Path) -> None:
    wrong = "trainer.activation_checkpointing={modules: [Blok]}"
    with pytest.raises(Exception, match=r"trainer.activation_checkpointing.modules: 'Blok'"):
        run_ranks(trained, 1, 60, args=(tmp_path / "run", (wrong,)))
    assert not RunDir(tmp_path / "run").metrics.exists()


def test_an_empty_list_of_modules_is_refused_by_the_check_of_the_config() -> None:
    with pytest.raises(ConfigError, match="activation_checkpointing"):
        config("trainer.activation_checkpointing={modules: []}")


def test_less_is_kept_for_the_backward_pass() -> None:
    def saved(*changes: str) -> int:
        model = Net(64)
        recompute_activations(model, config(*changes))
        task = SupervisedTask(nn.functional.mse_loss, {})
        return measure(model, task, [torch.ones(50, 1), torch.ones(50, 1)], False).peak

    assert saved(AUTO) < saved()


def test_estimate_counts_what_is_kept_with_attention_as_a_gpu_computes_it() -> None:
    def peak(*changes: str) -> int:
        transformer = "{target: 'dist_train.models.transformer:ByteTransformer', args: {width: 32, depth: 3, "
        run_config = config(f"model={transformer}heads: 2, context: 16, dropout: 0.1}}}}", *changes)
        with torch.device("meta"):
            model = make_model(run_config)
        recompute_activations(model, run_config)
        batch = torch.zeros(8, 17, dtype=torch.int64)
        found = activation_memory(
            model, NextTokenTask(), batch, autocast=False, compute_dtype=None, fused_attention=True
        )
        return found.peak

    assert peak(AUTO) < 0.75 * peak()
