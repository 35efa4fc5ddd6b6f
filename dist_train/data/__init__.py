"""The next sample: a permutation without a table, a drop-in sampler, an exact loader."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that owns it; resolved on use, so that importing the room loads no torch.
_PUBLIC = {
    "PERMUTATION_VERSION": "dist_train.data.permutation",
    "Permutation": "dist_train.data.permutation",
    "DistributedSampler": "dist_train.data.sampler",
    "ExactLoader": "dist_train.data.exact",
    "Share": "dist_train.data.shares",
}

if TYPE_CHECKING:
    from dist_train.data.exact import ExactLoader as ExactLoader
    from dist_train.data.permutation import PERMUTATION_VERSION as PERMUTATION_VERSION
    from dist_train.data.permutation import Permutation as Permutation
    from dist_train.data.sampler import DistributedSampler as DistributedSampler
    from dist_train.data.shares import Share as Share

__all__ = ["PERMUTATION_VERSION", "DistributedSampler", "ExactLoader", "Permutation", "Share"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.data' has no attribute {name!r}")
