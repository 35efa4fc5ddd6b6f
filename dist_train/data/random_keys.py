"""Derive keys for everything random in this package: splitmix64 over (domain, seed, epoch, dataset id)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_train.errors import ConfigError

MASK = (1 << 64) - 1
# The constants of splitmix64 (Steele, Lea and Flood 2014).
GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB

_U30, _U27, _U31 = np.uint64(30), np.uint64(27), np.uint64(31)
_UM1, _UM2 = np.uint64(_MULTIPLY_1), np.uint64(_MULTIPLY_2)


def mix(word: int) -> int:
    """splitmix64's finaliser: a bijection on 64-bit words."""
    word = ((word ^ (word >> 30)) * _MULTIPLY_1) & MASK
    word = ((word ^ (word >> 27)) * _MULTIPLY_2) & MASK
    return word ^ (word >> 31)


def mix_in_place(words: NDArray[np.uint64]) -> None:
    """`mix` on every element."""
    words ^= words >> _U30
    words *= _UM1
    words ^= words >> _U27
    words *= _UM2
    words ^= words >> _U31


def derive_key(domain: str, seed: int, epoch: int, dataset_id: str = "") -> int:
    """A 64-bit key; every argument is mixed separately, so that different arguments give different keys.

    Args:
        domain: what the key is for, such as "permutation".
        seed: 0 <= seed < 2**128.
        epoch: 0 <= epoch < 2**64.
        dataset_id: any text.

    Raises:
        ConfigError: seed or epoch out of range.
    """
    _refuse_outside("seed", seed, 128)
    _refuse_outside("epoch", epoch, 64)
    words = [*_text_words(domain), seed & MASK, seed >> 64, epoch, *_text_words(dataset_id)]
    state = 0
    for word in words:
        state = mix(((state + GOLDEN) & MASK) ^ mix((word + GOLDEN) & MASK))
    return state


def word_at(key: int, index: int) -> int:
    """Word `index` of the sequence of `key`: random access into splitmix64."""
    return mix((key + GOLDEN * (index + 1)) & MASK)


def words_up_to(key: int, count: int) -> NDArray[np.uint64]:
    """Words 0 .. count-1 of the sequence of `key`."""
    words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
    mix_in_place(words)
    return words


def _text_words(text: str) -> list[int]:
    # The length first, so that no text is a prefix of another.
    raw = text.encode()
    return [len(raw), *(int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8))]


def _refuse_outside(name: str, value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise ConfigError(
            f"{name} {value} is out of range",
            cause=f"a {name} is a whole number from 0 to 2**{bits} - 1",
            hint=f"give a {name} that is not negative and not larger",
        )
