"""Small real data sets that examples and tests name; their files and licences are beside them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Digits": "dist_train.datasets.digits",
    "IdxImages": "dist_train.datasets.idx",
    "TextBytes": "dist_train.datasets.text",
}

if TYPE_CHECKING:
    from dist_train.datasets.digits import Digits as Digits
    from dist_train.datasets.idx import IdxImages as IdxImages
    from dist_train.datasets.text import TextBytes as TextBytes

__all__ = ["Digits", "IdxImages", "TextBytes"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.datasets' has no attribute {name!r}")
