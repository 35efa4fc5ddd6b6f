"""Shapes, optimizer state and activations of an estimate, by themselves."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from estimate_cases import config_of
from estimate_models import DrawnByNumpy, Layers
from torch import nn

from dist_train.errors import ConfigError
from dist_train.estimate.activation_memory import activation_memory, measure
from dist_train.estimate.measured_parts import MeasuredParts
from dist_train.estimate.optimizer_memory import OptimizerState
from dist_train.estimate.sample_batch import SampleBatches
from dist_train.estimate.shape_model import make_shape_model
from dist_train.models.transformer import ByteTransformer
from dist_train.trainer.build_components import make_model, make_task
from dist_train.trainer.task import SupervisedTask

ROWS = {"train": {"target": "estimate_models:Rows"}, "batch_size": 16}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def config(model: str = "Layers", **sections: Any) -> Any:
    if "task" in sections:
        sections = {**sections, "loss": None}
    changes = {"model": f"estimate_models:{model}", "data": ROWS, "metrics": [], "checkpoint": {}, **sections}
    return config_of(**changes)


def parts(**sections: Any) -> MeasuredParts:
    chosen = config(**sections)
    return MeasuredParts(chosen, make_shape_model(chosen), on_gpu=False)


def state_bytes(optimizer: Any, **sections: Any) -> tuple[int | None, bool, str | None]:
    chosen = config(optimizer=optimizer, **sections)
    with torch.device("meta"):
        model = Layers()
    state = OptimizerState(chosen, model)
    found = state.memory({name: tuple(p.shape) for name, p in model.named_parameters()})
    return found.bytes, found.exact, state.note


NUMBERS = sum(p.numel() for p in Layers().parameters())
TENSORS = len(list(Layers().parameters()))


def test_the_state_is_that_of_a_step() -> None:
    assert state_bytes({"target": "adamw", "args": {"lr": 0.1}}) == (8 * NUMBERS + 4 * TENSORS, True, None)
    assert state_bytes({"target": "sgd", "args": {"lr": 0.1}}) == (0, True, None)


def test_an_optimizer_that_knows_no_meta_tensors_steps_with_small_ones() -> None:
    found, exact, note = state_bytes({"target": "adamw", "args": {"lr": 0.1, "fused": True}})
    assert (found, exact) == (8 * NUMBERS + 4 * TENSORS, True)
    assert note is not None
    assert note.startswith("its state by a step of small parameters")


def test_a_state_of_another_shape_is_not_called_exact() -> None:
    found, exact, note = state_bytes({"target": "torch.optim:Adafactor", "args": {"lr": 0.1}})
    real = Layers()
    optimizer = torch.optim.Adafactor(real.parameters(), lr=0.1)
    real(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    held = [value for state in optimizer.state.values() for value in state.values()]
    assert (found, exact) == (sum(v.numel() * v.element_size() for v in held), False)
    assert note is not None


@pytest.mark.parametrize("target", ["estimate_models:OddOptimizer", "torch.optim:LBFGS"])
def test_a_state_that_cannot_be_known_is_said_to_be_so(target: str) -> None:
    found, exact, note = state_bytes({"target": target, "args": {"lr": 0.1}})
    assert (found, exact) == (None, False)
    assert note is not None
    assert note.startswith("its state is not known")


def test_parameter_groups_count() -> None:
    groups = [{"parameters": ["*.bias"], "args": {"momentum": 0.0}}]
    found, _, _ = state_bytes(
        {"target": "sgd", "args": {"lr": 0.1, "momentum": 0.9}}, parameter_groups=groups
    )
    assert found == 4 * sum(p.numel() for n, p in Layers().named_parameters() if not n.endswith("bias"))


def test_a_model_that_needs_values_is_built_with_them_and_said_so() -> None:
    made = make_shape_model(config("DrawnByNumpy"))
    assert made.built_for_real is not None
    assert {p.device.type for p in made.model.parameters()} == {"meta"}
    shapes = [p.shape for p in made.model.parameters()]
    assert shapes == [p.shape for p in DrawnByNumpy().parameters()]


def test_one_that_needs_values_and_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be built without values") as caught:
        make_shape_model(config("FullOfNumbers"))
    assert "torch.device('meta')" in str(caught.value)


def test_tied_parameters_stay_tied() -> None:
    model = make_shape_model(config_of("language_model")).model
    assert isinstance(model, ByteTransformer)
    assert model.head.weight is model.embedding.weight


@pytest.mark.parametrize("example", ["digits", "language_model"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_without_values_it_keeps_what_it_keeps_with_them(example: str, precision: str) -> None:
    chosen = config_of(example, trainer={"epochs": 1, "precision": precision})
    batch = SampleBatches(chosen).of_size(8)
    bf16 = precision == "bf16"
    made = activation_memory(
        make_shape_model(chosen).model,
        make_task(chosen),
        batch,
        autocast=bf16,
        compute_dtype=None,
        fused_attention=False,
    )
    assert made == measure(make_model(chosen), make_task(chosen), batch, bf16)
    assert 0 < made.saved <= made.peak <= made.with_gradients


def test_attention_with_dropout_is_counted_as_gpus_keep_it() -> None:
    chosen = config_of(
        "language_model",
        model={"target": "dist_train.models.transformer:ByteTransformer", "args": {"context": 128}},
    )
    batch = SampleBatches(chosen).of_size(8)
    model, task = make_shape_model(chosen).model, make_task(chosen)
    found = {
        fused: activation_memory(
            model, task, batch, autocast=False, compute_dtype=None, fused_attention=fused
        ).saved
        for fused in (False, True)
    }
    matrix = 8 * 2 * 127 * 127 * 4  # of one layer: batch, heads, positions x positions
    assert found[False] - found[True] > 2 * matrix


def test_a_bound_of_activations_is_never_above_them() -> None:
    found = parts()
    for samples in (3, 8, 21):
        bound, exact = found.activations_at_least(samples, None), found.activations(samples, None)
        assert bound is not None
        assert exact is not None
        assert all(low <= high for low, high in zip(astuple(bound), astuple(exact), strict=True))
        assert bound.saved > 0.9 * exact.saved


def test_a_tensor_that_is_a_plain_attribute() -> None:
    found = parts(model="WithTensorAttribute")
    assert found.activations(4, None) is not None
    assert not found.notes


def test_saved_bytes_count_each_storage_once_and_no_parameters() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    task = SupervisedTask(nn.functional.mse_loss)
    batch = (torch.ones(16, 8), torch.ones(16, 2))
    # The input, the output of ReLU (which ReLU and the second layer both keep), the scores and the targets.
    assert measure(model, task, batch, False).saved == 4 * 16 * (8 + 4 + 2 + 2)


def test_a_task_that_reads_values_is_computed_with_values() -> None:
    found = parts(task="estimate_models:LooksAtValues")
    known = parts(loss="cross_entropy")
    with_values, without = found.activations(8, None), known.activations(8, None)
    assert with_values is not None
    assert without is not None
    assert (with_values.saved, with_values.peak) == (without.saved, without.peak)
    assert any("computed with values for 1 and 2 samples" in note for note in found.notes)


def test_data_that_is_not_here_leaves_only_the_activations_out() -> None:
    found = parts(data={"train": "estimate_models:Elsewhere", "batch_size": 16})
    assert found.activations(8, None) is None
    assert any("FileNotFoundError: /scratch/data/train.bin" in note for note in found.notes)


_PEAK = """
import sys, torch
from torch import nn
from dist_train.trainer.task import SupervisedTask
def line(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))
torch.set_num_threads(1)
width, samples = 1024, 2048
layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
model = nn.Sequential(*layers)
task = SupervisedTask(nn.functional.mse_loss)
def step(batch):
    task.loss(model, batch).total.backward()
    for parameter in model.parameters():
        parameter.grad = None
step((torch.ones(2, width), torch.ones(2, width)))
batch = (torch.ones(samples, width), torch.ones(samples, width))
if sys.argv[1] == "real":
    before = line("VmRSS")
    step(batch)
    print(line("VmHWM") - before)
else:
    from dist_train.estimate.activation_memory import activation_memory
    settings = {"autocast": False, "compute_dtype": None, "fused_attention": False}
    print(activation_memory(model.to("meta"), task, batch, **settings).with_gradients)
"""


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_near_that_of_a_real_process() -> None:
    real, estimated = (
        int(
            subprocess.run(
                [sys.executable, "-c", _PEAK, which], capture_output=True, text=True, check=True, timeout=120
            ).stdout
        )
        for which in ("real", "estimated")
    )
    assert real > 80 * 2**20, "large enough for the rest of the process not to matter"
    assert estimated == pytest.approx(real, rel=0.15)
