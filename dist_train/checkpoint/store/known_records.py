"""The parsed records of kept checkpoints, by the hash of their bytes: every save needs each of them.

The bytes are read each time and are the key (their hash), so that whatever another process has changed is
parsed again; only the parsing is saved, which for thousands of tensors takes longer than a save.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import xxhash

T = TypeVar("T")

# More checkpoints than anyone keeps; what is remembered of each is small.
KNOWN = 64


class KnownRecords(Generic[T]):
    """Values of records by the hash of their bytes, those that were asked for last."""

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, T] = OrderedDict()

    def get(self, raw: bytes, parse: Callable[[bytes], T]) -> T:
        """Return what `parse` gives for these bytes; its errors are raised, and not remembered."""
        key = xxhash.xxh3_128_digest(raw)
        # Each line leaves them whole: the thread of a save in the background asks, too.
        value = self._values.get(key)
        if value is None:
            value = parse(raw)
        self._remember(key, value)
        return value

    def put(self, raw: bytes, value: T) -> None:
        """Remember the value of bytes that this process has made itself."""
        self._remember(xxhash.xxh3_128_digest(raw), value)

    def _remember(self, key: bytes, value: T) -> None:
        self._values.pop(key, None)  # to the end
        self._values[key] = value
        while len(self._values) > KNOWN:
            self._values.popitem(last=False)
