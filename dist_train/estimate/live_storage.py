"""How many bytes of tensors live at each moment of a computation, and how many wait for its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage_key(tensor: Tensor) -> int:
    """The identity of the memory that a tensor shows, which its views have too."""
    return int(tensor.untyped_storage()._cdata)


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every storage that an operation makes, its end, and whether autograd keeps it.

    Args:
        leave_out: tensors whose storages are not counted.
    """

    def __init__(self, leave_out: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {storage_key(tensor) for tensor in leave_out}
        self._changes: list[tuple[int, int]] = []
        self._number = 0
        self._numbers: dict[int, int] = {}
        self._saved: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return out

    @contextmanager
    def noting_saved(self) -> Iterator[None]:
        """Count what operations within keep for the backward pass."""

        def keep(tensor: Tensor) -> Tensor:
            key = storage_key(tensor)
            if key in self._numbers or key not in self._known:
                # One that was made here, or an input: that is there from before.
                self._saved[self._numbers.get(key, -key)] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield

    @property
    def saved(self) -> int:
        """Bytes that are kept for the backward pass, each storage once."""
        return sum(self._saved.values())

    def peak(self, without: Iterable[Tensor] = ()) -> int:
        """The most bytes that were there at once, less those of some tensors that still live."""
        left_out = {self._numbers.get(storage_key(tensor)) for tensor in without}
        now = most = 0
        for number, change in self._changes:
            if number not in left_out:
                now += change
                most = max(most, now)
        return most

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        if key in self._known:
            return
        self._number += 1
        number, size = self._number, storage.nbytes()
        self._known.add(key)
        self._numbers[key] = number
        self._changes.append((number, size))
        weakref.finalize(storage, self._end, key, number, size)

    def _end(self, key: int, number: int, size: int) -> None:
        self._known.discard(key)
        if self._numbers.get(key) == number:
            del self._numbers[key]
        self._changes.append((number, -size))
