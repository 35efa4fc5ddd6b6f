"""A model that was split by hand is not moved to one device without a word."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError
from dist_train.strategies.split_model import refuse_split_model
from dist_train.strategies.warmup import warm_up


class Split(nn.Module):
    """Its layers say that they are on two GPUs."""

    def __init__(self, *places: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in places)
        self.hf_device_map = {f"layers.{n}": place for n, place in enumerate(places)}


def test_prepare_refuses_a_model_on_two_gpus() -> None:
    with dt.init(device="cpu"):
        with pytest.raises(ConfigError, match="Split is spread over cuda:0, cuda:1") as raised:
            dt.prepare(Split("cuda:0", "cuda:1"))
        assert "all of it would be moved to cpu" in str(raised.value)
        with pytest.raises(ConfigError, match="Split is spread over cuda:0, disk"):
            dt.prepare(Split(0, "disk"))  # type: ignore[arg-type]
        dt.prepare(Split("cuda:0", "cuda:0", "cpu"))


def test_real_devices_count_without_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr("dist_train.strategies.split_model._devices", lambda model: devices)
    with pytest.raises(ConfigError, match="Linear is spread over cuda:0, cuda:1"):
        refuse_split_model(nn.Linear(1, 1), devices[0])
    monkeypatch.setattr(
        "dist_train.strategies.split_model._devices", lambda model: [*devices[:1], torch.device("cpu")]
    )
    refuse_split_model(nn.Linear(1, 1), devices[0])


def test_a_model_without_memory_is_refused_with_what_gives_it_some() -> None:
    with dt.init(device="cpu"), pytest.raises(ConfigError, match="on the device meta") as raised:
        dt.prepare(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta")))
    assert "to_empty" in str(raised.value.hint)


def test_the_discarded_step_keeps_the_rng_state_of_this_ranks_devices_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.nn.parallel import DistributedDataParallel

    asked: list[object] = []
    fork = torch.random.fork_rng

    def noted(devices: object = None) -> object:
        asked.append(devices)
        return fork(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", noted)
    with dt.init(device="cpu"):
        from torch import distributed as torch_dist
        from torch.distributed import HashStore

        torch_dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            model = DistributedDataParallel(nn.Linear(1, 1))
            assert warm_up(model, lambda: model(torch.ones(1, 1)).sum().backward())
        finally:
            torch_dist.destroy_process_group()
    assert asked == [[]], "without devices torch warns for each visible GPU, and copies each one's state"
