"""The RNG state of a rank as tensors: Python's, NumPy's global one, torch's on CPU and GPU."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from dist_train.distributed.seeding import cuda_in_use
from dist_train.errors import CheckpointError

ALWAYS = ("python", "numpy", "torch")
CUDA = "cuda"


def capture_rng() -> dict[str, torch.Tensor]:
    """Return the RNG state of every generator now; this draws nothing."""
    states = {"python": _python(), "numpy": _numpy(), "torch": torch.get_rng_state().clone()}
    if cuda_in_use():
        states[CUDA] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: Mapping[str, torch.Tensor]) -> None:
    """Restore the RNG state; KeyError where some is missing, CUDA's is ignored where it is not in use."""
    numbers = [int(number) for number in states["python"].tolist()]
    count = numbers[1]
    gauss = _to_float(numbers[3 + count]) if numbers[2] else None
    random.setstate((numbers[0], tuple(numbers[3 : 3 + count]), gauss))
    numbers = [int(number) for number in states["numpy"].tolist()]
    key = np.array(numbers[3:], dtype=np.uint32)
    np.random.set_state(("MT19937", key, numbers[0], numbers[1], _to_float(numbers[2])))
    torch.set_rng_state(states["torch"])
    if cuda_in_use():
        torch.cuda.set_rng_state(states[CUDA])


def derive_rng(seed: int, step: int, rank: int) -> None:
    """Seed every generator by (seed, step, rank): for a world size at which no RNG state was saved."""
    random.seed(_key("python", seed, step, rank))
    numpy_key = _key("numpy", seed, step, rank)
    np.random.seed([(numpy_key >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
    torch.default_generator.manual_seed(_key("torch", seed, step, rank) >> 64)
    derive_cuda(seed, step, rank)


def derive_cuda(seed: int, step: int, rank: int) -> None:
    """Seed the GPU's generator alone, where one is in use."""
    if cuda_in_use():
        torch.cuda.manual_seed(_key(CUDA, seed, step, rank) >> 64)


def _key(generator: str, seed: int, step: int, rank: int) -> int:
    return xxhash.xxh3_128_intdigest(f"dist-train rank rng/{generator}/{seed}/{step}/{rank}".encode())


def _python() -> torch.Tensor:
    version, numbers, gauss = random.getstate()
    tail = [int(gauss is not None), *numbers, _to_bits(gauss or 0.0)]
    return torch.tensor([version, len(numbers), *tail], dtype=torch.int64)


def _numpy() -> torch.Tensor:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise CheckpointError(
            f"numpy's global generator is {state['bit_generator']}",
            hint="only MT19937, its default, can be stored; keep other generators in your own object",
        )
    inner = state["state"]
    head = [int(inner["pos"]), int(state["has_gauss"]), _to_bits(float(state["gauss"]))]
    return torch.tensor([*head, *(int(number) for number in inner["key"])], dtype=torch.int64)


def _to_bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _to_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
