"""Tensors of a loaded checkpoint for whoever keeps them: none holds the whole checkpoint in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from dist_train.checkpoint.state.sharded_tensors import as_spread
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.distributed.parameter_shards import is_sharded


def own_copies(
    loaded: LoadedCheckpoint, live: Mapping[str, torch.Tensor] | None = None
) -> Mapping[str, torch.Tensor]:
    """Return the checkpoint's tensors, on the devices of those of `live` and sharded as they; else as stored.

    One of memory that the ranks of a node share is copied when it is asked for: a small tensor that is kept
    would else keep all of that memory. What has memory of its own is not copied.
    """
    return _OwnCopies(loaded, live or {})


class _OwnCopies(Mapping[str, torch.Tensor]):
    def __init__(self, loaded: LoadedCheckpoint, live: Mapping[str, torch.Tensor]) -> None:
        self._tensors, self._is_shared, self._live = loaded.tensors, loaded.is_shared, live

    def __getitem__(self, name: str) -> torch.Tensor:
        live = self._live.get(name)
        if live is not None and live.is_meta:
            return torch.empty_like(live)  # another rank's: nothing is read
        if live is not None and is_sharded(live) and live.shape == self._tensors.stored(name).shape:
            return as_spread(self._tensors.stored(name), live).clone()
        tensor = self._tensors[name]
        moved = tensor if live is None else tensor.to(live.device)
        return moved.clone() if self._is_shared and moved is tensor else moved

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
