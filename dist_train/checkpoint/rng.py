"""Every random stream of a rank as tensors: Python's, NumPy's global one, torch's on CPU and GPU."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from dist_train.errors import CheckpointError

ALWAYS = ("python", "numpy", "torch")
CUDA = "cuda"


def capture_rng() -> dict[str, torch.Tensor]:
    """The streams' states now; taking them moves none."""
    streams = {"python": _python(), "numpy": _numpy(), "torch": torch.get_rng_state().clone()}
    if cuda_in_use():
        streams[CUDA] = torch.cuda.get_rng_state()
    return streams


def restore_rng(streams: Mapping[str, torch.Tensor]) -> None:
    """Put the streams back; KeyError for one that is missing, a stream not in use here is ignored."""
    words = [int(word) for word in streams["python"].tolist()]
    count = words[1]
    gauss = _to_float(words[3 + count]) if words[2] else None
    random.setstate((words[0], tuple(words[3 : 3 + count]), gauss))
    words = [int(word) for word in streams["numpy"].tolist()]
    key = np.array(words[3:], dtype=np.uint32)
    np.random.set_state(("MT19937", key, words[0], words[1], _to_float(words[2])))
    torch.set_rng_state(streams["torch"])
    if cuda_in_use():
        torch.cuda.set_rng_state(streams[CUDA])


def derive_rng(seed: int, step: int, rank: int) -> None:
    """Streams of their own for (seed, step, rank): for a world size at which none were saved."""
    random.seed(_key("python", seed, step, rank))
    numpy_key = _key("numpy", seed, step, rank)
    np.random.seed([(numpy_key >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
    torch.default_generator.manual_seed(_key("torch", seed, step, rank) >> 64)
    derive_cuda(seed, step, rank)


def derive_cuda(seed: int, step: int, rank: int) -> None:
    """The GPU's stream alone, where one is in use."""
    if cuda_in_use():
        torch.cuda.manual_seed(_key(CUDA, seed, step, rank) >> 64)


def cuda_in_use() -> bool:
    """True once this process has started CUDA; asking does not start it."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _key(stream: str, seed: int, step: int, rank: int) -> int:
    return xxhash.xxh3_128_intdigest(f"dist-train rank rng/{stream}/{seed}/{step}/{rank}".encode())


def _python() -> torch.Tensor:
    version, words, gauss = random.getstate()
    tail = [int(gauss is not None), *words, _to_bits(gauss or 0.0)]
    return torch.tensor([version, len(words), *tail], dtype=torch.int64)


def _numpy() -> torch.Tensor:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise CheckpointError(
            f"numpy's global random stream is {state['bit_generator']}",
            mend="only MT19937, its default, can be stored; keep other generators in your own object",
        )
    inner = state["state"]
    head = [int(inner["pos"]), int(state["has_gauss"]), _to_bits(float(state["gauss"]))]
    return torch.tensor([*head, *(int(word) for word in inner["key"])], dtype=torch.int64)


def _to_bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _to_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
