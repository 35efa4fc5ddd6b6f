"""A random permutation of N samples without a table: O(1) memory, O(1) seek, exact inverse.

Above 2**14 it is a generalised Feistel network on Z_a x Z_b with a*b just above N (Black and
Rogaway 2002): 8 rounds, since with 4 consecutive outputs of small domains are visibly related. The
few points between N and a*b are permuted again until they are below N. Small N use a Fisher-Yates
table, because a Feistel network reaches too few of the N! orders there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dist_train.data.random_keys import derive_key, mix, mix_in_place, word_at, words_up_to
from dist_train.errors import ConfigError

# Increases when any output changes; checkpoints record it and refuse another.
PERMUTATION_VERSION = 1
ROUNDS = 8
TABLE_LIMIT = 1 << 14
MAX_N = 1 << 62
# Points per pass: the temporaries stay inside the cache, and memory does not grow with the request.
_BLOCK = 1 << 14
_U32 = np.uint64(32)


class Permutation:
    """A bijection of 0 .. n-1 that depends on (n, seed, epoch, dataset_id) and nothing else.

    `p[i]` is the sample at position i, `p[array]` many at once, `p.inverse(i)` the position of
    sample i ("when is it seen?").

    Args:
        n: number of samples, 1 <= n <= 2**62.
        seed: 0 <= seed < 2**128.
        epoch: 0 <= epoch < 2**64; never added to the seed.
        dataset_id: distinguishes data sets with the same seed.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, n: int, seed: int = 0, epoch: int = 0, dataset_id: str = "") -> None:
        if not 1 <= n <= MAX_N:
            raise ConfigError(
                f"a permutation of {n} samples cannot be made",
                cause="the number of samples is from 1 to 2**62",
                hint="check the length of the dataset",
            )
        self.n = n
        self.seed = seed
        self.epoch = epoch
        self.dataset_id = dataset_id
        key = derive_key("permutation", seed, epoch, dataset_id)
        self._network: _Table | _Feistel = _Table(n, key) if n <= TABLE_LIMIT else _Feistel(n, key)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return (
            f"Permutation(n={self.n}, seed={self.seed}, epoch={self.epoch}, dataset_id={self.dataset_id!r})"
        )

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.n, _BLOCK):
            yield from self[np.arange(start, min(start + _BLOCK, self.n))].tolist()

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> int: ...
    @overload
    def __getitem__(self, index: NDArray[Any] | list[int]) -> NDArray[np.int64]: ...
    def __getitem__(self, index: int | ArrayLike) -> int | NDArray[np.int64]:
        if isinstance(index, int | np.integer):
            return self._network.forward(self._checked(int(index)))
        return self._many(index, inverse=False)

    @overload
    def inverse(self, index: int | np.integer[Any]) -> int: ...
    @overload
    def inverse(self, index: NDArray[Any] | list[int]) -> NDArray[np.int64]: ...
    def inverse(self, index: int | ArrayLike) -> int | NDArray[np.int64]:
        """The position of a sample: `p.inverse(p[i]) == i`."""
        if isinstance(index, int | np.integer):
            return self._network.backward(self._checked(int(index)))
        return self._many(index, inverse=True)

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(f"index {index} is not in 0 .. {self.n - 1}")
        return index

    def _many(self, index: ArrayLike, *, inverse: bool) -> NDArray[np.int64]:
        points = np.asarray(index)
        if points.size and points.dtype.kind not in "iu":
            raise TypeError(f"indices must be whole numbers, not {points.dtype}")
        if points.size:
            self._checked(int(points.min()))
            self._checked(int(points.max()))
        flat = points.reshape(-1)
        out = np.empty(flat.shape, dtype=np.int64)
        for at in range(0, flat.size, _BLOCK):
            block = flat[at : at + _BLOCK].astype(np.uint64)
            out[at : at + _BLOCK] = self._network.many(block, inverse=inverse)
        return out.reshape(points.shape)


class _Table:
    """Fisher-Yates, at most 2**14 entries."""

    def __init__(self, n: int, key: int) -> None:
        # Multiply-shift of the upper 32 bits: word i becomes a number in 0 .. i.
        limits = np.arange(1, n + 1, dtype=np.uint64)
        picks = (((words_up_to(key, n) >> _U32) * limits) >> _U32).tolist()
        table = list(range(n))
        for i in range(n - 1, 0, -1):
            j = picks[i]
            table[i], table[j] = table[j], table[i]
        self._table = np.array(table, dtype=np.int64)
        self._positions = np.empty_like(self._table)
        self._positions[self._table] = np.arange(n)

    def forward(self, point: int) -> int:
        return int(self._table[point])

    def backward(self, point: int) -> int:
        return int(self._positions[point])

    def many(self, points: NDArray[np.uint64], *, inverse: bool) -> NDArray[np.int64]:
        return (self._positions if inverse else self._table)[points]


class _Feistel:
    """Point = left * b + right; rounds add to left and right in turn, modulo a and b."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self.a = math.isqrt(n)
        self.b = -(-n // self.a)
        self.keys = [word_at(key, i) for i in range(ROUNDS)]

    def forward(self, point: int) -> int:
        point = self._once(point)
        while point >= self.n:
            point = self._once(point)
        return point

    def backward(self, point: int) -> int:
        point = self._once_back(point)
        while point >= self.n:
            point = self._once_back(point)
        return point

    def many(self, points: NDArray[np.uint64], *, inverse: bool) -> NDArray[np.int64]:
        once = self._many_once_back if inverse else self._many_once
        points = once(points)
        outside = np.flatnonzero(points >= self.n)
        while outside.size:
            points[outside] = once(points[outside])
            outside = outside[points[outside] >= self.n]
        return points.astype(np.int64)

    def _once(self, point: int) -> int:
        left, right = divmod(point, self.b)
        for i, key in enumerate(self.keys):
            if i % 2 == 0:
                left = (left + _reduced(right ^ key, self.a)) % self.a
            else:
                right = (right + _reduced(left ^ key, self.b)) % self.b
        return left * self.b + right

    def _once_back(self, point: int) -> int:
        left, right = divmod(point, self.b)
        for i in reversed(range(len(self.keys))):
            if i % 2 == 0:
                left = (left - _reduced(right ^ self.keys[i], self.a)) % self.a
            else:
                right = (right - _reduced(left ^ self.keys[i], self.b)) % self.b
        return left * self.b + right

    def _many_once(self, points: NDArray[np.uint64]) -> NDArray[np.uint64]:
        a, b = np.uint64(self.a), np.uint64(self.b)
        left, right = np.divmod(points, b)
        for i, key in enumerate(self.keys):
            if i % 2 == 0:
                _add(left, _many_reduced(right, key, a), a)
            else:
                _add(right, _many_reduced(left, key, b), b)
        return left * b + right

    def _many_once_back(self, points: NDArray[np.uint64]) -> NDArray[np.uint64]:
        a, b = np.uint64(self.a), np.uint64(self.b)
        left, right = np.divmod(points, b)
        for i in reversed(range(len(self.keys))):
            if i % 2 == 0:
                _add(left, a - _many_reduced(right, self.keys[i], a), a)
            else:
                _add(right, b - _many_reduced(left, self.keys[i], b), b)
        return left * b + right


def _reduced(word: int, size: int) -> int:
    return ((mix(word) >> 32) * size) >> 32


def _many_reduced(half: NDArray[np.uint64], key: int, size: np.uint64) -> NDArray[np.uint64]:
    # size <= 2**31 + 2 for every n up to MAX_N, so the product of two 32-bit words cannot overflow.
    words = half ^ np.uint64(key)
    mix_in_place(words)
    words >>= _U32
    words *= size
    words >>= _U32
    return words


def _add(half: NDArray[np.uint64], step: NDArray[np.uint64], size: np.uint64) -> None:
    # Modulo without a division: both are at most `size`; where the sum is below `size` the difference
    # wraps around to a huge word, and the minimum is the sum.
    half += step
    np.minimum(half, half - size, out=half)
