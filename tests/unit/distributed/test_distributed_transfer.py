"""dt.to_device: nested batches; devices that are not there are named with the right ones."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import dist_train as dt
from dist_train.distributed.devices import as_device
from dist_train.errors import ConfigError
from dist_train.jobs.device_names import nearest_device_name, visible_names

Pair = namedtuple("Pair", "image label")


@dataclass(frozen=True)
class Batch:
    image: torch.Tensor
    names: list[str]
    pair: Pair


class Moves:
    """An object that moves itself, and knows nothing of non_blocking."""

    def to(self, device: torch.device) -> str:
        return f"moved to {device}"


def test_containers_are_made_anew_as_they_are_nested() -> None:
    x = torch.zeros(2)
    batch = Batch(x, ["a", "b"], Pair(x, {"mask": (x, 3, None)}))
    moved = dt.to_device([batch, OrderedDict(x=x)], "meta")
    assert isinstance(moved, list)
    assert isinstance(moved[0], Batch)
    assert isinstance(moved[0].pair, Pair)
    assert isinstance(moved[1], OrderedDict)
    inside = [moved[0].image, moved[0].pair.image, moved[0].pair.label["mask"][0], moved[1]["x"]]
    assert {tensor.device.type for tensor in inside} == {"meta"}
    assert (moved[0].names, moved[0].pair.label["mask"][1:]) == (["a", "b"], (3, None))
    assert batch.image.device.type == "cpu"  # nothing is moved in place


def test_one_tensor_and_things_that_are_none() -> None:
    assert dt.to_device(torch.zeros(1), torch.device("meta")).device.type == "meta"
    for thing in (None, 3, "text", 2.5, [], {}):
        assert dt.to_device(thing, "meta") == thing


def test_what_can_move_itself_is_asked_to() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    # Opened as the namedtuple that it is, its lengths would be moved too, which torch refuses.
    moved = dt.to_device({"words": [packed]}, "meta")["words"][0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
    assert dt.to_device((Moves(),), "cpu") == ("moved to cpu",)
    mapping: Any = UserDict(x=torch.zeros(1))
    assert dt.to_device(mapping, "meta")["x"].device.type == "meta"


def test_a_copy_to_the_cpu_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would hand out memory that the GPU is still writing to."""
    asked: list[bool] = []

    class Watched(torch.Tensor):
        def to(self, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Any:
            asked.append(non_blocking)
            return self

    tensor = torch.zeros(1).as_subclass(Watched)
    for device, non_blocking in (("cpu", True), ("meta", True), ("meta", False)):
        dt.to_device(tensor, device, non_blocking)
    assert asked == [False, True, False]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("cuda: 0", "cuda:0"),
        ("CUDA:1", "cuda:1"),
        ("gpu", "cuda"),
        ("gpu:3", "cuda:3"),
        ("cuda 2", "cuda:2"),
        ("cudaa:0", "cuda:0"),
        ("cuda:01", "cuda:1"),
        ("cpu:", "cpu"),
        ("", "cuda"),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    assert nearest_device_name(wrong) == right
    with pytest.raises(ConfigError) as raised:
        as_device(wrong)
    assert f"device {wrong!r}" in raised.value.what
    assert raised.value.mend == f"did you mean {right!r}?"


def test_a_gpu_that_is_not_there_is_answered_with_how_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert as_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError) as raised:
        as_device("cuda:3")
    assert str(raised.value).splitlines() == [
        "device 'cuda:3': 2 GPU(s) are visible to this process",
        "  cause: CUDA_VISIBLE_DEVICES=2,3: they are numbered anew from cuda:0",
        "  mend:  use cuda:0 to cuda:1, or run.device",
    ]


@pytest.mark.parametrize(("count", "words"), [(0, "none"), (1, "cuda:0"), (2, "cuda:0 to cuda:1")])
def test_the_names_that_a_process_may_use(count: int, words: str) -> None:
    assert visible_names(count) == words


def test_a_gpu_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"0 GPU\(s\) are visible(.|\n)*use 'cpu', or run.device"):
        dt.to_device(torch.zeros(1), "cuda")
