"""Types beyond JSON and safetensors: stored and given back as they were, or refused before the training."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from checkpoint_cases import manager
from torch import nn

import dist_train as dt
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.state.encoding import decode, encode
from dist_train.errors import CheckpointError

VALUES = [
    torch.Size([2, 3]),
    {3, "a", (1, 2)},
    set(),
    frozenset({1, 2.5, frozenset({"x"})}),
    deque([1, {"a": 2}], maxlen=5),
    deque(),
    defaultdict(int, {"a": 1, 2: 3}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {}),
    OrderedDict([("b", 1), ("a", (2,))]),
    OrderedDict([(2, "x"), ("2", OrderedDict())]),
    np.float64(1.5),
    np.float32("nan"),
    np.int64(-3),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.str_("é"),
    np.datetime64("2026-01-02"),
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.array([True, False]),
    np.array(3.5),
    np.zeros((0, 4), np.float16),
    np.array(["ab", "c"]),
    np.arange(12.0).reshape(3, 4).T,
    np.array([1 + 2j]),
]


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"inside": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["inside"]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_it_comes_back_with_its_type(tmp_path: Path, value: Any) -> None:
    manager(tmp_path).save(1, {"x": Holder(value)})
    into = Holder(None)
    manager(tmp_path, attempt=1).load_latest({"x": into})
    back = into.value
    assert type(back) is type(value)
    if isinstance(value, np.ndarray):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(back, value)
        assert back.flags.writeable
    elif isinstance(value, np.generic):
        assert (back.dtype, back.tobytes()) == (value.dtype, value.tobytes())
    else:
        assert back == value
    if isinstance(value, deque):
        assert back.maxlen == value.maxlen
    if isinstance(value, defaultdict):
        assert back.default_factory is value.default_factory


def test_tensors_in_an_ordered_dict_keep_their_names() -> None:
    tensors: dict[str, torch.Tensor] = {}
    back = decode(encode(nn.Linear(1, 1).state_dict(), "x", tensors), tensors)
    assert list(tensors) == ["x/weight", "x/bias"]
    assert (type(back), list(back)) == (OrderedDict, ["weight", "bias"])


def test_two_keys_of_one_name_are_refused_with_a_hint() -> None:
    with pytest.raises(CheckpointError, match="both be called 'x/1'") as raised:
        encode({1: torch.ones(1), "1": torch.ones(1)}, "x", {})
    assert "1 and '1'" in str(raised.value.hint)


def test_equal_sets_are_written_equally() -> None:
    one, other = {"a", "b", "c", 1}, {1, "c", "b", "a"}
    assert encode(one, "x", {}) == encode(other, "x", {})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({torch.ones(1)}, "a set of tensors"),
        (defaultdict(lambda: 0), "whose factory is"),
        (np.array([object()]), "numpy dtype object"),
        (np.longdouble(1), "numpy dtype"),
        (np.zeros(1, [("a", "i4")]), "numpy dtype"),
        (np.ma.masked_array([1]), "MaskedArray"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_training(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        manager(tmp_path).load_latest({"model": nn.Linear(1, 1), "x": Holder(value)})


def test_a_lazy_model_is_not_refused_before_its_first_forward(tmp_path: Path) -> None:
    assert manager(tmp_path).load_latest({"model": nn.LazyLinear(2)}) is None


def test_no_name_in_a_file_is_looked_up() -> None:
    for content in (["os.system", {"$dict": []}], ["exec", []], [3]):
        with pytest.raises(DamagedCheckpoint, match=r"\$defaultdict"):
            decode({"$defaultdict": content}, {})  # type: ignore[dict-item]


DTYPES = [torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_is_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.arange(32, dtype=torch.uint8).reshape(1, 32)
    saved = {"x": raw.view(dtype), "y": torch.ones(3), "empty": torch.empty(0, 2, dtype=dtype)}
    manager(tmp_path).save(1, saved)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    manager(tmp_path, attempt=1).load_latest(loaded)
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_complex128_weights_there_and_back_and_as_pairs_for_other_tools(tmp_path: Path) -> None:
    model, path = nn.Linear(2, 2, dtype=torch.complex128), tmp_path / "m.safetensors"
    dt.checkpoint.save_model(model, path)
    target = nn.Linear(2, 2, dtype=torch.complex128)
    dt.checkpoint.load_model(path, target)
    assert torch.equal(target.weight, model.weight)
    theirs = safetensors.torch.load_file(path)
    assert torch.equal(torch.view_as_complex(theirs["weight"]), model.weight)


def test_what_was_stored_before_is_written_as_before() -> None:
    value = {"a": (1, 2.5), "c": Counter({3: 2}), "b": b"\0"}
    expected = {
        "a": {"$tuple": [1, 2.5]},
        "c": {"$counter": [[3, 2]]},
        "b": {"$bytes": "00"},
    }
    assert encode(value, "x", {}) == expected


def test_a_parameter_comes_back_as_the_plain_tensor_that_it_holds(tmp_path: Path) -> None:
    manager(tmp_path).save(1, {"x": Holder([nn.Parameter(torch.ones(2))])})
    into = Holder(None)
    manager(tmp_path, attempt=1).load_latest({"x": into})
    (back,) = into.value
    assert (type(back), back.requires_grad, back.tolist()) == (torch.Tensor, False, [1.0, 1.0])
