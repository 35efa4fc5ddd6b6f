"""dt.to_device: nested batches; the error for an unknown device names the available ones."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
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
    """An object with a `.to` without the argument non_blocking."""

    def to(self, device: torch.device) -> str:
        return f"moved to {device}"


def test_nested_containers_are_rebuilt() -> None:
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


def test_one_tensor_and_values_without_tensors() -> None:
    assert dt.to_device(torch.zeros(1), torch.device("meta")).device.type == "meta"
    for thing in (None, 3, "text", 2.5, [], {}):
        assert dt.to_device(thing, "meta") == thing


def test_an_objects_own_to_is_called() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    # Treated as a namedtuple, its lengths would be moved too, which torch refuses.
    moved = dt.to_device({"words": [packed]}, "meta")["words"][0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
    assert dt.to_device((Moves(),), "cpu") == ("moved to cpu",)
    mapping: Any = UserDict(x=torch.zeros(1))
    assert dt.to_device(mapping, "meta")["x"].device.type == "meta"


def test_a_copy_to_the_cpu_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would return memory that the GPU is still writing to."""
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
def test_the_error_for_a_wrong_name_names_the_nearest(wrong: str, right: str) -> None:
    assert nearest_device_name(wrong) == right
    with pytest.raises(ConfigError) as raised:
        as_device(wrong)
    assert f"device {wrong!r}" in raised.value.what
    assert raised.value.hint == f"did you mean {right!r}?"


def test_the_error_for_a_missing_gpu_names_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert as_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError) as raised:
        as_device("cuda:3")
    assert str(raised.value).splitlines() == [
        "device 'cuda:3': 2 GPU(s) are visible to this process",
        "  cause: CUDA_VISIBLE_DEVICES=2,3: they are renumbered from cuda:0",
        "  hint:  use cuda:0 to cuda:1, or run.device",
    ]


@pytest.mark.parametrize(("count", "expected"), [(0, "none"), (1, "cuda:0"), (2, "cuda:0 to cuda:1")])
def test_visible_names(count: int, expected: str) -> None:
    assert visible_names(count) == expected


def test_a_gpu_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"0 GPU\(s\) are visible(.|\n)*use 'cpu', or run.device"):
        dt.to_device(torch.zeros(1), "cuda")


def test_dict_subclasses_keep_keys_that_are_no_strings_and_what_they_were_made_with() -> None:
    class ById(dict):  # type: ignore[type-arg]
        pass

    class Attributes(dict):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.__dict__ = self

    class Lists(defaultdict):  # type: ignore[type-arg]
        pass

    moved = dt.to_device(ById({0: torch.ones(1), (1, "a"): [torch.ones(2)], "name": "x"}), "meta")
    assert type(moved) is ById
    assert list(moved) == [0, (1, "a"), "name"]
    assert moved[0].is_meta
    assert moved[(1, "a")][0].is_meta
    attributes = dt.to_device(Attributes(x=torch.ones(1)), "meta")
    assert attributes.x is attributes["x"]
    assert attributes.x.is_meta
    for keys in ([0], ["a"]):
        lists = dt.to_device(Lists(list, {key: torch.ones(1) for key in keys}), "meta")
        assert (type(lists), lists.default_factory, list(lists)) == (Lists, list, keys)


def test_a_dict_subclass_that_changes_its_keys_is_refused() -> None:
    class Texts(dict):  # type: ignore[type-arg]
        def __init__(self, items: Any = ()) -> None:
            super().__init__({f"_{key}": value for key, value in dict(items).items()})

    with pytest.raises(ConfigError, match="Texts cannot be rebuilt with the same keys"):
        dt.to_device(Texts({0: torch.ones(1)}), "meta")
