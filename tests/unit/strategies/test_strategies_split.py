"""Strategy `split`: which layer lies where, and what is refused; on a CPU all devices are the same.

No machine with two GPUs has run it.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.errors import ConfigError
from dist_train.strategies.blocks.device_split import balanced, by_map, place
from dist_train.strategies.split import SplitOptions, devices_of
from dist_train.strategies.strategy_fit import fit_strategy
from dist_train.testing import run_ranks


class Layers(nn.Module):
    """Blocks of given widths between a first layer and a head."""

    def __init__(self, *widths: int, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(2, width, bias=False), nn.Linear(width, 2, bias=False))
            for width in widths
        )
        self.head = nn.Linear(2, 2, bias=False)
        if tied:
            self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


@pytest.mark.parametrize(
    ("widths", "devices"),
    [
        ((1, 1, 1, 1), 2),
        ((10, 1, 1, 1), 2),
        ((1, 1, 1, 10), 2),
        ((2,) * 7, 3),
        ((9, 1, 1), 3),
        ((1, 2, 9, 3), 2),
    ],
)
def test_layers_are_balanced_by_bytes_in_their_order(widths: tuple[int, ...], devices: int) -> None:
    model = Layers(*widths)
    found = balanced(model, devices)
    numbers = [found.device_of[f"layers.{n}"] for n in range(len(widths))]
    assert numbers == sorted(numbers)
    ways = [
        tuple(sum(place >= cut for cut in cuts) for place in range(len(widths)))
        for cuts in combinations(range(1, len(widths)), devices - 1)
    ]
    assert max(found.bytes_of_device) == min(fullest(model, way, devices) for way in ways)
    assert sum(found.bytes_of_device) == 4 * sum(p.numel() for p in model.parameters())


def fullest(model: Layers, numbers: tuple[int, ...], devices: int) -> int:
    chosen = {f"layers.{n}": number for n, number in enumerate(numbers)}
    return max(by_map(model, chosen, devices).bytes_of_device)


def test_a_map_names_classes_and_patterns_and_the_rest_lies_on_the_first_device() -> None:
    model = Layers(1, 2, 3, tied=True)
    found = by_map(model, {"layers.1": 1, "layers.2": 2}, 3)
    assert found.bytes_of_device == (4 * (4 + 4), 4 * 8, 4 * 12)


@pytest.mark.parametrize(
    ("chosen", "devices", "message"),
    [
        ({"layres.1": 1}, 2, "split: map: 'layres.1' is neither"),
        ({"layers.1": 2}, 2, "places 'layers.1' on device 2, and a rank has 2"),
        ({"layers.0": 0}, 2, "nothing lies on device 1"),
        ({"layers.1": 1, "Sequential": 0}, 2, "places 'layers.1' on two devices"),
        ({"layers.1": 1, "layers.1.0": 0}, 2, r"'layers.1.0' on device 0, and 'layers.1' around it on 1"),
        ({"head": 1}, 2, r"'first.weight' on device 0 and 'head.weight' on device 1 are one tensor"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(chosen: dict[str, int], devices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        by_map(Layers(1, 1, tied=True), chosen, devices)


def test_wrong_options_are_found_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="'head' is on device 2, and a rank has 2"):
        fit_strategy("split", {"devices": 2, "map": {"head": 2}}, 1, "cuda")
    with pytest.raises(ConfigError, match="over 3 devices"):
        balanced(Layers(1, 1), 3)
    assert fit_strategy("split", {"devices": 2}, 1, "cpu").strategy.name == "split"


def test_what_a_module_is_called_with_follows_it_and_the_output_comes_back() -> None:
    model = Layers(1, 1)
    # A device that has no values takes the place of a second GPU.
    model.layers[1].to("meta")
    place(model, by_map(model, {"layers.1": 1}, 2), [torch.device("cpu"), torch.device("meta")])
    assert {name: p.device.type for name, p in model.named_parameters()}["layers.1.0.weight"] == "meta"
    assert model.first.weight.device.type == "cpu"
    seen: list[str] = []
    model.layers[1].register_forward_hook(lambda module, args, out: seen.append(out.device.type))
    with pytest.raises(NotImplementedError, match="meta"):  # back from it there are no values to copy
        model(torch.ones(3, 2))
    assert seen == ["meta"]


def of_rank(local_rank: int, ranks: int, device: str) -> Run:
    info = RankInfo.from_env({})
    object.__setattr__(info, "local_world_size", ranks)
    return Run(info, torch.device(device))


def test_each_rank_has_devices_of_its_own() -> None:
    assert devices_of(SplitOptions(), of_rank(1, 2, "cuda:1"), 4) == [
        torch.device("cuda", 1),
        torch.device("cuda", 3),
    ]
    with pytest.raises(ConfigError, match=r"2 GPU\(s\) are visible for 2 rank\(s\)"):
        devices_of(SplitOptions(), of_rank(0, 2, "cuda:0"), 2)
    with pytest.raises(ConfigError, match="with 3 each"):
        devices_of(SplitOptions(devices=3), of_rank(0, 2, "cuda:0"), 4)
    with pytest.raises(ConfigError, match="`devices` is not given"):
        devices_of(SplitOptions(), of_rank(0, 1, "cpu"), 0)


def trained(strategy: str, options: dict[str, Any]) -> list[float]:
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        torch.manual_seed(0)
        model = dt.prepare(Layers(3, 3, tied=True).double(), strategy, **options)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        inputs = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(inputs[run.rank :: run.world_size]).square().mean()
            loss.backward()
            dt.clip_grad_norm_(model, 1.0)
            optimizer.step()
            losses.append(run.control.sum([float(loss.detach())])[0] / run.world_size)
        return losses


@pytest.mark.multiprocess
@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_are_those_of_one_process(ranks: int) -> None:
    (expected,) = run_ranks(trained, 1, 60, args=("ddp", {}))
    for found in run_ranks(trained, ranks, 60, args=("split", {"devices": 2})):
        assert found == pytest.approx(expected, rel=1e-9)
