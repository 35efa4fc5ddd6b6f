"""Whether a program keeps a loop's batches beyond its end, as `itertools.cycle(loader)` does."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch

# References to a tensor that only its batch holds: the container's, a variable's and getrefcount's own.
_OWN_REFERENCES = 3


class KeptBatch:
    """The first batch of a loop. `alive` after the loop: it may be trained on again.

    One whose tensors are held by the data set as well is not followed.
    """

    def __init__(self, batch: Any) -> None:
        tensor = _first_tensor(batch)
        own = tensor is batch or sys.getrefcount(tensor) <= _OWN_REFERENCES
        self._tensor = weakref.ref(tensor) if tensor is not None and own else None

    @property
    def alive(self) -> bool:
        """Whether something still holds the batch."""
        return self._tensor is not None and self._tensor() is not None


def _first_tensor(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    inside = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Mapping | list | tuple):
        return None
    return next((found for found in map(_first_tensor, inside) if found is not None), None)
