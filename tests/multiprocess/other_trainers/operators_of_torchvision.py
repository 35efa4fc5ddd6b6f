"""Declare torchvision's compiled operators where they cannot be loaded, so that the rest can be imported.

The wheels of PyPI are built against CUDA's torch; with a torch for CPU their library does not load, and
`import torchvision` fails. Models, transforms and data sets for classification need no operator of it.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
