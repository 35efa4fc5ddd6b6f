"""Notice that a data set was changed since its workers were started: they hold a copy of it.

The walk goes through attributes, containers and tensors. It does not see into objects of C extensions,
global variables, or all of a large array (4096 of its elements are read, besides its address and version).
"""

from __future__ import annotations

import functools
import marshal
import types
from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

_VALUES = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# Objects that are visited one by one: some 100 ms.
_MOST_OBJECTS = 100_000
# Items of one container that are plain values: about a second.
_MOST_ITEMS = 10_000_000
_CHUNK = 1 << 14
_LARGE_BYTES = 1 << 22
_SAMPLED = 4096


def contents_digest(*values: Any) -> str | None:
    """A hash that changes with the values' attributes; None where there are too many to look at."""
    walk = _Walk()
    try:
        for value in values:
            walk.visit(value)
    except _TooMany:
        return None
    return walk.digest.hexdigest()


class _TooMany(Exception):
    pass


class _Walk:
    def __init__(self) -> None:
        self.digest = xxhash.xxh3_128()
        self._seen: dict[int, int] = {}
        # Objects made during the walk would give their address to the next ones.
        self._kept: list[Any] = []
        self._left: deque[Any] = deque()

    def visit(self, root: Any) -> None:
        self._left.append(root)
        while self._left:
            self._one(self._left.pop())

    def _one(self, value: Any) -> None:
        if isinstance(value, _VALUES):
            self._say(type(value).__name__, value)
        elif id(value) in self._seen:
            self._say("seen", self._seen[id(value)])
        else:
            self._first_time(value)

    def _first_time(self, value: Any) -> None:
        if len(self._seen) >= _MOST_OBJECTS:
            raise _TooMany
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        self._say(type(value).__qualname__)
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, list | tuple | set | frozenset | deque | dict):
            self._container(value)
            self._attributes(value)
        else:
            self._object(value)

    def _say(self, *facts: Any) -> None:
        self.digest.update(repr(facts).encode("utf-8", "surrogatepass"))

    def _tensor(self, value: torch.Tensor) -> None:
        if value.layout != torch.strided or value.device.type == "meta":
            self._say(id(value))
            return
        version = 0 if value.is_inference() else value._version
        self._say(value.data_ptr(), version, tuple(value.shape), value.dtype)
        if value.device.type == "cpu" and value.is_contiguous() and not value.is_conj():
            self._bytes(value.detach().reshape(-1).view(torch.uint8).numpy())

    def _array(self, value: NDArray[Any]) -> None:
        self._say(value.ctypes.data, value.shape, value.dtype)
        if value.dtype.hasobject:
            self._left.append(value.tolist())
        elif not isinstance(value, np.memmap) and value.flags.c_contiguous:
            self._bytes(value.reshape(-1).view(np.uint8))

    def _bytes(self, raw: NDArray[np.uint8]) -> None:
        step = 1 if raw.size <= _LARGE_BYTES else raw.size // _SAMPLED
        self.digest.update(np.ascontiguousarray(raw[::step]).tobytes())

    def _container(self, value: Any) -> None:
        self._say(len(value))
        if len(value) > _MOST_ITEMS:
            raise _TooMany
        items = iter(value.items() if isinstance(value, dict) else value)
        while chunk := list(islice(items, _CHUNK)):
            try:
                # Version 0 writes no references: the same bytes for the same values.
                self.digest.update(marshal.dumps(chunk, 0))
            except ValueError:
                self._left.extend(chunk)

    def _object(self, value: Any) -> None:
        self._say(id(value))
        if isinstance(value, type | types.ModuleType):
            return
        if isinstance(value, functools.partial):
            self._left.extend([value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self._left.append(value.__self__)
        elif isinstance(value, types.FunctionType):
            cells = value.__closure__ or ()
            self._left.extend(cell.cell_contents for cell in cells if cell != types.CellType())
        self._attributes(value)

    def _attributes(self, value: Any) -> None:
        names = [name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())]
        self._left.extend(getattr(value, name, None) for name in names if name != "__dict__")
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._left.append(dict(own))
