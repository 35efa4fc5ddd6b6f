"""Small real data sets for examples and tests; their files and licences are in files/.

digits   `Digits`: the UCI handwritten digits
idx      `IdxImages`: images in MNIST's file format, such as Fashion-MNIST
text     `TextBytes`: windows of bytes for a language model
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

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

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
