"""The weights of a file by name: in memory, or read when they are asked for, each time again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from dist_train.checkpoint.format.boxes import Box
from dist_train.checkpoint.state.module_state import Stored, tied_names
from dist_train.checkpoint.store.sharded_reader import StoredTensor


class WeightTensors(Mapping[str, torch.Tensor]):
    """Name -> tensor.

    Args:
        stored: those in memory, and what reads the others. Tied ones have one tensor, or one StoredTensor.
    """

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored = dict(stored)

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self.stored[name]
        return found.read() if isinstance(found, StoredTensor) else found

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def aliases(self) -> dict[str, str]:
        """Return the second names of tied tensors, each with the first one."""
        first: dict[tuple[int, str], str] = {}
        tied = {}
        for name, one in self.stored.items():
            if isinstance(one, StoredTensor):
                known = first.setdefault((id(one.reader), one.key), name)
                if known != name:
                    tied[name] = known
        return {**tied, **tied_names(self._in_memory_now())}

    def in_memory(self) -> dict[str, torch.Tensor]:
        """Read all; tied ones are one tensor."""
        aliases = self.aliases()
        found = {name: self[name] for name in self if name not in aliases}
        return {name: found[aliases.get(name, name)] for name in self}

    def _in_memory_now(self) -> dict[str, torch.Tensor]:
        return {name: one for name, one in self.stored.items() if isinstance(one, torch.Tensor)}


@dataclass(frozen=True)
class WidenedReader:
    """Reads a tensor and makes its elements wider, which changes no value.

    Args:
        stored: the tensor.
        dtype: the wider type.
    """

    stored: StoredTensor
    dtype: torch.dtype

    def shape_of(self, _key: str) -> Sequence[int]:
        """Return the shape of the tensor."""
        return self.stored.shape

    def dtype_of(self, _key: str) -> torch.dtype:
        """Return the wider type."""
        return self.dtype

    def read(self, _key: str, wanted: Box | None = None) -> torch.Tensor:
        """Read one box of the tensor; default all of it."""
        return self.stored.read(wanted).to(self.dtype)
