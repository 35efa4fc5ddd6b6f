"""Move data to another device: `.to`, `.cuda(1)`, `copy_`.

python moving_tensors.py

The traps: `model.to(device)` moves the model, but `x.to(device)` returns a copy and leaves x where it was;
a batch is seldom one tensor, and a list or a dict has no `.to`. `dt.to_device` takes a batch of any
structure and returns the moved one. `copy_` writes into an existing tensor, across devices too, and
broadcasts: one number fills the whole tensor.
"""

from typing import Any

import torch

import dist_train as dt


def tutorial(batch: dict[str, Any], device: str) -> dict[str, Any]:
    """What works for a model, written for a batch."""
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            value.to(device)
    return batch


def ours(batch: dict[str, Any], device: str) -> dict[str, Any]:
    """Every tensor, however nested."""
    return dt.to_device(batch, device)


def devices(value: Any) -> set[str]:
    """The devices of all tensors in it."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return {kind for item in inner for kind in devices(item)}


if __name__ == "__main__":
    images = {"image": torch.zeros(2, 3), "boxes": [torch.zeros(1, 4), torch.zeros(5, 4)], "name": "two"}
    # `meta` has shapes only; it takes the place of a GPU here.
    target = "cuda:0" if torch.cuda.is_available() else "meta"
    for form in (tutorial, ours):
        print(f"{form.__name__ + ':':10}wanted on {target}, is on {sorted(devices(form(images, target)))}")
