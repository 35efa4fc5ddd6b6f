"""State as JSON, hashes and safetensors headers: exact, reversible, frozen."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.hashing import state_hash, weights_hash
from dist_train.checkpoint.format.tensor_file import TensorFile
from dist_train.checkpoint.state.collect import collect
from dist_train.checkpoint.state.encoding import decode, encode
from dist_train.checkpoint.state.rng_state import capture_rng, derive_rng, restore_rng
from dist_train.checkpoint.weights.safetensors_file import read_safetensors
from dist_train.errors import CheckpointError
from dist_train.rundir.durable_files import durable_file

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_survives_to_the_type(value: Any) -> None:
    text = dump_canonical(encode(value, "x", {}))
    back = decode(load_canonical(text), {})
    assert back == value
    assert _shape(back) == _shape(value)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((repr(key), _shape(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), [_shape(item) for item in value]
    return type(value), repr(value)


def test_tensors_are_pulled_out_under_their_path() -> None:
    tensors: dict[str, torch.Tensor] = {}
    one, two = torch.ones(2), torch.zeros(())
    value = {"a": [one, {"b": two}], "c": Counter({3: 2})}
    back = decode(encode(value, "key", tensors), tensors)
    assert set(tensors) == {"key/a/0", "key/a/1/b"}
    assert torch.equal(back["a"][0], one)
    assert type(back["c"]) is Counter
    assert back["c"] == value["c"]
    with pytest.raises(CheckpointError, match="both be called 'key/a/b'"):
        encode({"a/b": one, "a": {"b": two}}, "key", {})


@pytest.mark.parametrize(
    "value",
    [object(), 1j, lambda: 0, torch.float32, range(2)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'key/x' is of type .*{type(value).__qualname__}"):
        encode({"x": value}, "key", {})


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.empty(2, device="meta")],
    ids=["sparse", "meta"],
)
def test_tensors_that_are_not_plain_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="'key/x'"):
        collect({"key": {"x": tensor}})


# "a" + e-acute sorts after "b" in neither order of bytes nor of letters: 0x61 comes first.
HASHED = {"b": torch.tensor([[1.0, 2.0]]), "a\u00e9": torch.tensor(3, dtype=torch.int64)}


def test_weights_hash_and_state_hash_are_the_documented_ones() -> None:
    entries = b"a\xc3\xa9\0int64\0\0" + xxhash.xxh3_128_digest(struct.pack("<q", 3))
    entries += b"b\0float32\0001,2\0" + xxhash.xxh3_128_digest(struct.pack("<ff", 1.0, 2.0))
    assert weights_hash(HASHED) == xxhash.xxh3_128_hexdigest(b"dist-train weights 2\0" + entries)
    text = b'{"x":1}'
    entries += b"state.json\0json\0\0" + xxhash.xxh3_128_digest(text)
    assert state_hash(HASHED, text) == xxhash.xxh3_128_hexdigest(b"dist-train state 2\0" + entries)


def test_version_1_hashed_one_stream() -> None:
    stream = b"a\xc3\xa9\0int64\0\0" + struct.pack("<Qq", 8, 3)
    stream += b"b\0float32\0001,2\0" + struct.pack("<Qff", 8, 1.0, 2.0)
    assert weights_hash(HASHED, version=1) == xxhash.xxh3_128_hexdigest(stream)


def test_weights_hash_sees_values_not_memory_layout() -> None:
    plain = torch.arange(24.0).reshape(2, 3, 2, 2)
    turned = plain.to(memory_format=torch.channels_last)
    assert weights_hash({"x": plain}) == weights_hash({"x": turned})
    assert weights_hash({"x": plain}) != weights_hash({"x": plain.reshape(3, 2, 2, 2)})
    assert weights_hash({"x": plain}) != weights_hash({"x": -plain})


DTYPES = "bool uint8 int8 uint16 int16 float16 bfloat16 uint32 int32 float32 uint64 int64 float64 complex64 "
DTYPES += "float8_e4m3fn float8_e5m2"


def test_every_dtype_through_our_file_and_safetensors(tmp_path: Path) -> None:
    tensors = {name: torch.tensor([[1, 0, 1]]).to(getattr(torch, name)) for name in DTYPES.split()}
    tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}
    path = tmp_path / "all.safetensors"
    file = TensorFile(tensors, {"note": "x"})
    with durable_file(path) as write:
        file.write(write)
    assert path.stat().st_size == file.bytes
    header, ours = read_safetensors(path)
    theirs = safetensors.torch.load_file(path)
    assert header.metadata == {"note": "x"}
    for name, tensor in tensors.items():
        for other in (ours[name], theirs[name]):
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(_raw(other), _raw(tensor))
    safetensors.torch.save_file(tensors, path)
    assert read_safetensors(path)[1].keys() == tensors.keys()


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def test_rng_state_is_restored_and_derived_state_differs() -> None:
    import random

    import numpy as np

    def draw() -> list[float]:
        return [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(())), random.random()]

    draw()  # leaves half a Gaussian pair in Python's and NumPy's generators
    states = capture_rng()
    first = draw()
    draw()
    restore_rng(states)
    assert draw() == first
    seen = set()
    for seed, step, rank in [(0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)]:
        derive_rng(seed, step, rank)
        values = draw()
        derive_rng(seed, step, rank)
        assert draw() == values
        seen.update(values)
    assert len(seen) == 16
