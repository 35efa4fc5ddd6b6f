"""Tensors of a loaded checkpoint for whoever keeps them: none holds the whole checkpoint in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from dist_train.checkpoint.store.reader import LoadedCheckpoint


def own_copies(
    loaded: LoadedCheckpoint, places: Mapping[str, torch.device] | None = None
) -> Mapping[str, torch.Tensor]:
    """Return the checkpoint's tensors, each on its device of `places`; default where it is.

    One of memory that the ranks of a node share is copied when it is asked for: a small tensor that is kept
    would else keep all of that memory. What has memory of its own is not copied.
    """
    return _OwnCopies(loaded, places or {})


class _OwnCopies(Mapping[str, torch.Tensor]):
    def __init__(self, loaded: LoadedCheckpoint, places: Mapping[str, torch.device]) -> None:
        self._tensors, self._is_shared, self._places = loaded.tensors, loaded.is_shared, places

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        moved = tensor.to(self._places.get(name, tensor.device))
        return moved.clone() if self._is_shared and moved is tensor else moved

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
