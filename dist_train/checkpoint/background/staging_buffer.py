"""Host memory that tensors are copied to at a save, and again at the next one: pinned for those of a GPU."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Mapping
from typing import NamedTuple

import torch

logger = logging.getLogger(__name__)

# Of each tensor's place: more than the largest element, and a line of the processor's cache.
_ALIGN = 64


class _Kind(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


class StagingBuffer:
    """One block of host memory for copies of tensors; it grows as needed, and is kept."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._is_for_gpu = False
        self._kinds: list[_Kind] = []
        self._copies: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Of the block."""
        return self._block.nbytes

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy tensors of any device; return contiguous host tensors of the same dtypes and shapes.

        When this returns, the originals may be changed. The copies of the call before are overwritten.
        """
        kinds = [_Kind(name, t.dtype, tuple(t.shape), t.nbytes) for name, t in tensors.items()]
        devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        if kinds != self._kinds or (devices and not self._is_for_gpu):
            self._lay_out(kinds, for_gpu=bool(devices))
        if tensors:
            torch._foreach_copy_(
                [*self._copies.values()],
                [tensor.detach() for tensor in tensors.values()],
                non_blocking=bool(devices),
            )
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return dict(self._copies)

    def release(self) -> None:
        """Give the memory back; the next copy takes new memory."""
        self._kinds, self._copies = [], {}
        self._block = torch.empty(0, dtype=torch.uint8)

    def _lay_out(self, kinds: list[_Kind], for_gpu: bool) -> None:
        places, end = [], 0
        for kind in kinds:
            places.append(end)
            end += -(-kind.nbytes // _ALIGN) * _ALIGN
        self._kinds, self._copies = [], {}
        if end > self._block.nbytes or (for_gpu and not self._is_for_gpu):
            self.release()  # before the new block is there: never two of them
            self._block = _new_block(end, pinned=for_gpu)
            self._is_for_gpu = for_gpu
        for kind, start in zip(kinds, places, strict=True):
            flat = self._block[start : start + kind.nbytes]
            self._copies[kind.name] = flat.view(kind.dtype).view(kind.shape)
        self._kinds = kinds


def _new_block(size: int, pinned: bool) -> torch.Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    if pinned:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            logger.warning("%d bytes could not be pinned, copies of the GPU are slower: %s", size, first_line)
    memory = mmap.mmap(-1, size)
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        # DONTFORK: a loader's worker that was forked would else keep the pages that the next save writes.
        if hasattr(mmap, advice):
            _advise(memory, getattr(mmap, advice))
    return torch.frombuffer(memory, dtype=torch.uint8)


def _advise(memory: mmap.mmap, advice: int) -> None:
    try:
        memory.madvise(advice)
    except OSError as error:  # a kernel without large pages
        logger.debug("madvise(%d): %s", advice, error)
