"""Summarise samples so that ranks can compare them: what another machine may compute differently is left out.

Each sample is read twice; values that differ between the two readings (a data set with a generator of its
own) are not compared, nor are objects of unknown types.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils import _pytree

from dist_train.data.random_keys import derive_key
from dist_train.data.reading.sample_rng import global_rng_kept, seed_global_rng

# One value of a sample: a text must be equal; after a text, figures must be close; None is not compared.
Leaf = None | str | tuple[str, list[float]]
Summary = list[list[Leaf]]

# Decoders and vector units of different machines differ by less, different samples by more.
_TOLERANCE = 3e-3
_FEW_ELEMENTS = 16
_EXACT_KINDS = "biu"


def read_summaries(dataset: Any, ids: list[int], seed: int, dataset_id: str) -> str:
    """Read samples and summarise them, as JSON; the training's RNG state is put back.

    A sample that cannot be read is not compared: its error is raised when it is due.
    """
    key = derive_key("sample", seed, 0, dataset_id)
    with global_rng_kept():
        return json.dumps([_stable_summary(dataset, index, key) for index in ids])


def alike(ours: Summary, theirs: Summary) -> bool:
    """Whether two ranks' summaries may be of the same samples."""
    for one, other in zip(ours, theirs, strict=True):
        if one and other and len(one) != len(other):
            return False
        if not all(_close(a, b) for a, b in zip(one, other, strict=False)):
            return False
    return True


def _stable_summary(dataset: Any, index: int, key: int) -> list[Leaf]:
    try:
        first, second = (_summary(dataset, index, key) for _ in range(2))
    except Exception:
        return []
    if len(first) != len(second):
        return []
    return [a if _close(a, b) else None for a, b in zip(first, second, strict=True)]


def _summary(dataset: Any, index: int, key: int) -> list[Leaf]:
    seed_global_rng(key, index)
    return [_leaf(leaf) for leaf in _pytree.tree_leaves(dataset[index])]


def _leaf(value: Any) -> Leaf:
    if isinstance(value, (bool, int)):
        return f"int {value}"
    if isinstance(value, float):
        return "float", [value]
    if isinstance(value, bytes):
        return f"bytes {xxhash.xxh3_64_hexdigest(value)}"
    if isinstance(value, str):
        # A path may differ between nodes; the file's name may not.
        text = os.path.basename(value) if value.startswith(os.sep) else value
        return f"text {xxhash.xxh3_64_hexdigest(text.encode())}"
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta:
            return f"{value.dtype} {list(value.shape)}"
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
        value = value.resolve_conj().resolve_neg().numpy()
    elif hasattr(value, "tobytes") and hasattr(value, "size"):
        value = np.asarray(value)  # an image of PIL, a scalar of numpy
    return _array_leaf(value) if isinstance(value, np.ndarray) else None


def _array_leaf(array: np.ndarray[Any, Any]) -> Leaf:
    if array.dtype.kind in _EXACT_KINDS and array.dtype != np.uint8:
        facts = f"{array.dtype} {array.shape}"
        return f"{facts} {xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())}"
    if array.dtype.kind not in "uf" or not array.size:
        return f"{array.dtype} {array.shape}"
    numbers = array.astype(np.float64).reshape(-1)
    figures = numbers if numbers.size <= _FEW_ELEMENTS else np.array([numbers.mean(), numbers.std()])
    return f"float {array.shape}", figures.tolist()


def _close(one: Leaf, other: Leaf) -> bool:
    if one is None or other is None:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    (kind, ours), (other_kind, theirs) = one, other
    if kind != other_kind or len(ours) != len(theirs):
        return False
    scale = _TOLERANCE * max(0.0, 0.0, *(abs(number) for number in (*ours, *theirs) if math.isfinite(number)))
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= scale for a, b in zip(ours, theirs, strict=True)
    )
