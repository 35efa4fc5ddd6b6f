"""Strategy dp: how it splits a batch, what it refuses. No GPU here: all devices are the CPU, and torch's
replication of modules is replaced by a fake that runs the parts one after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError
from dist_train.strategies.dp import STRATEGY, DpOptions, advice, device_ids
from dist_train.strategies.prepare import load_strategy
from dist_train.strategies.torch_data_parallel import BalancedDataParallel, chunk_sizes


@pytest.mark.parametrize(
    ("batch", "devices", "first", "sizes"),
    [
        (64, 4, None, (16, 16, 16, 16)),
        (64, 4, 4, (4, 20, 20, 20)),
        (100, 4, None, (25, 25, 25, 25)),
        (10, 4, None, (2, 3, 3, 2)),
        (10, 4, 1, (1, 3, 3, 3)),
        (64, 4, 40, (16, 16, 16, 16)),  # never more than the others
        (3, 4, None, (1, 1, 1)),  # fewer samples than devices: some get none
        (2, 8, 1, (1, 1)),
        (1, 4, None, (1,)),
        (0, 4, None, (0,)),
        (7, 1, None, (7,)),
    ],
)
def test_chunks(batch: int, devices: int, first: int | None, sizes: tuple[int, ...]) -> None:
    assert chunk_sizes(batch, devices, first) == sizes


@given(st.integers(1, 4096), st.integers(1, 16), st.none() | st.integers(1, 4096))
def test_chunks_of_any_batch(batch: int, devices: int, first: int | None) -> None:
    head, *others = sizes = chunk_sizes(batch, devices, first)
    assert sum(sizes) == batch
    assert min(sizes) >= 1
    assert len(sizes) == min(batch, devices)
    assert all(head <= other for other in others)
    assert not others or max(others) - min(others) <= 1


def pretend_parallel(
    module: nn.Module, devices: int, monkeypatch: pytest.MonkeyPatch, first: int | None = None
) -> BalancedDataParallel:
    """The real wrapper, whose replicas are the module itself."""
    wrapped = BalancedDataParallel(module, [torch.device("cpu")] * devices, None, first)
    wrapped.device_ids = list(range(devices))  # torch leaves it empty without a GPU
    wrapped.src_device_obj, wrapped.output_device, wrapped.dim = torch.device("cpu"), 0, 0

    def in_turn(replicas: Sequence[nn.Module], inputs: Any, kwargs: Any) -> list[Any]:
        return [
            replica(*args, **words) for replica, args, words in zip(replicas, inputs, kwargs, strict=True)
        ]

    monkeypatch.setattr(wrapped, "replicate", lambda module, ids: [module] * len(ids))
    monkeypatch.setattr(wrapped, "parallel_apply", in_turn)
    monkeypatch.setattr(nn.DataParallel, "gather", lambda self, outputs, device: torch.cat(outputs))
    return wrapped


class Sized(nn.Module):
    """Records the number of samples of each part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.parts: list[int] = []

    def forward(self, x: torch.Tensor, batch: dict[str, Any]) -> Any:
        self.parts.append(len(x))
        assert len(batch["mask"]) == len(x)
        return self.layer(x * batch["mask"]) * batch["scale"]


@pytest.mark.parametrize(("samples", "parts"), [(10, [1, 5, 4]), (2, [1, 1])])
def test_outputs_and_gradients_are_those_of_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch, samples: int, parts: list[int]
) -> None:
    model = Sized().double()
    wrapped = pretend_parallel(model, 3, monkeypatch, first=1)
    x = torch.randn(samples, 3, dtype=torch.float64)
    batch = {"mask": torch.rand(samples, 1, dtype=torch.float64), "scale": torch.tensor(2.0), "name": "train"}
    expected = model(x, batch)
    expected.square().mean().backward()
    grad, model.layer.weight.grad = model.layer.weight.grad, None
    model.parts.clear()
    output = wrapped(x, batch=batch)
    output.square().mean().backward()
    assert model.parts == parts
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(model.layer.weight.grad, grad)


def test_inputs_whose_first_dimensions_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = pretend_parallel(Sized(), 2, monkeypatch)
    with pytest.raises(ConfigError, match="inputs have 4, 7 rows"):
        wrapped(torch.zeros(4, 3), {"mask": torch.zeros(7, 1)})


class Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


def test_a_mean_inside_the_model_over_uneven_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"one number per device, for \(1, 3\) samples"):
        pretend_parallel(Loss(), 2, monkeypatch, first=1)(torch.zeros(4, 3))


def test_unwrap_of_data_parallel() -> None:
    model = nn.Linear(2, 2)
    assert dt.unwrap(nn.DataParallel(model)) is model
    with dt.init(device="cpu"), pytest.raises(ConfigError, match="wrapped already"):
        dt.prepare(nn.DataParallel(model))


def test_without_a_gpu_the_model_runs_unwrapped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with dt.init(device="cpu"):
        model = nn.Linear(2, 2)
        assert dt.prepare(model, "dp", first_device_batch=2) is model
    assert "strategy dp: no GPU, so the model runs as it is, on cpu" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device_ids": [0, 4]}, r"there is no cuda:4, 4 GPU\(s\) are visible(.|\n)*use 0 to 3"),
        ({"device_ids": [0, 1], "output_device": -1}, "there is no cuda:-1"),
        ({"device_ids": [0, 1, 0]}, "names a GPU twice"),
        ({"device_ids": [2, 0]}, "begins with 2, and this process computes on cuda:0"),
    ],
)
def test_wrong_devices_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        device_ids(DpOptions(**options), own=0, visible=4)


def test_devices() -> None:
    assert device_ids(DpOptions(), own=0, visible=3) == (0, 1, 2)
    assert device_ids(DpOptions(device_ids=(0, 3), output_device=3), own=0, visible=4) == (0, 3)


def test_several_ranks_are_refused_with_a_hint_for_both_alternatives() -> None:
    run: Any = SimpleNamespace(
        world_size=4, info=SimpleNamespace(local_world_size=4), device=torch.device("cpu")
    )
    with pytest.raises(ConfigError) as raised:
        STRATEGY.wrap(nn.Linear(1, 1), run, DpOptions())
    assert raised.value.what == "strategy 'dp' cannot train on 4 ranks"
    assert raised.value.hint is not None
    assert "--gpus-per-node 1 --gpus 0,1,2,3" in raised.value.hint
    assert "strategy 'ddp'" in raised.value.hint


def test_on_gpus_it_is_wrapped_with_one_line_of_advice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # as if
    run: Any = SimpleNamespace(world_size=1, device=torch.device("cuda", 0))
    model = nn.Linear(1, 1)
    with caplog.at_level(logging.WARNING):
        wrapped = load_strategy("dp").wrap(model, run, DpOptions(first_device_batch=3))
    assert isinstance(wrapped, BalancedDataParallel)
    assert dt.unwrap(wrapped) is model
    assert advice(2) in caplog.text
    assert "strategy ddp with --gpus-per-node 2" in advice(2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert load_strategy("dp").wrap(model, run, DpOptions()) is model
    assert "only cuda:0 is used" in caplog.text
