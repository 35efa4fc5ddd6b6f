"""A digest of a tensor's bytes, computed on the device where the tensor is: no copy of state to the host.

Integers only, so that every device gives the same number, in any order of addition. The bytes are read as
64-bit words; to each its place is added, the sum is mixed (splitmix64's finalizer, a bijection in which
every bit of the input changes half of the output's), and the mixed words are added modulo 2^64. One word that
differs always shows; several, also exchanged ones or signs that are turned in pairs, but for one case
in 2^64. It finds accidents, not forgeries: what is stored has the hash of its file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

# The temporaries of one piece take three times as much memory.
PIECE_BYTES = 32 << 20
_WORD = 8


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_PLACE = _signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, 1))


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return 16 hexadecimal digits per tensor; one copy to the host for each device, not for each tensor."""
    by_device: dict[torch.device, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        by_device[tensor.device][name] = tensor
    found: dict[str, str] = {}
    for device, part in by_device.items():
        longest = min(max(tensor.nbytes for tensor in part.values()), PIECE_BYTES)
        places = torch.arange(1, -(-longest // _WORD) + 1, dtype=torch.int64, device=device).mul_(_PLACE)
        values = torch.stack([_digest(tensor, places) for tensor in part.values()]).tolist()
        found |= {name: f"{value % (1 << 64):016x}" for name, value in zip(part, values, strict=True)}
    return {name: found[name] for name in tensors}


@torch.no_grad()
def _digest(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(flat), PIECE_BYTES):
        words = _words(flat[start : start + PIECE_BYTES])
        # The number of words before this piece, as the places of its own are counted from 1.
        before = _signed(start // _WORD * _PLACE % (1 << 64))
        total += _mixed(words + places[: len(words)], before).sum()
    return total


def _words(piece: torch.Tensor) -> torch.Tensor:
    """The bytes as 64-bit words, the last one filled up with zeros; its length is not part of the digest."""
    if len(piece) % _WORD == 0 and piece.storage_offset() % _WORD == 0 and piece.data_ptr() % _WORD == 0:
        return piece.view(torch.int64)
    whole = torch.zeros(-(-len(piece) // _WORD) * _WORD, dtype=torch.uint8, device=piece.device)
    whole[: len(piece)] = piece
    return whole.view(torch.int64)


def _mixed(words: torch.Tensor, before: int) -> torch.Tensor:
    """Mix in place; torch shifts int64 with its sign, so that the bits that come from it are cleared."""
    words += before
    for shift, factor in _ROUNDS:
        high = words >> shift
        high &= (1 << (64 - shift)) - 1
        words ^= high
        if factor != 1:
            words *= factor
    return words
