"""Copy the next batch to the GPU while the current one trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from dist_train.distributed.pytree import map_tensors
from dist_train.distributed.transfer import to_device


class Copies(Protocol):
    """Starts copies that overlap with the program, and makes the program's kernels wait for one."""

    def start(self, batch: Any) -> Any:
        """Start a copy; its result must not be read before `finish`."""
        ...

    def finish(self, batch: Any) -> None:
        """Make the batch usable for all later work of the program."""
        ...


class CudaCopies:
    """Copies on a CUDA stream of their own.

    Args:
        device: where batches go; pinned memory lets their copies overlap with the training.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> Any:
        # Memory that the program has freed may be reused by this stream although kernels still read it
        # (`hold` does not reach into objects with a `.to` of their own). Those are the last step's
        # kernels: the copy overlaps with the next step.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return to_device(batch, self._device)

    def finish(self, batch: Any) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)

        def hold(tensor: torch.Tensor) -> torch.Tensor:
            # Allocated on the side stream: its memory must not be reused before the current stream has
            # finished with it, also not by another user of that side stream (torch pools streams).
            if tensor.is_cuda and tensor.layout == torch.strided:
                tensor.record_stream(current)
            return tensor

        map_tensors(batch, hold)


def copies_to(device: torch.device | None) -> Copies | None:
    """The copies to this device; None if batches need no copy."""
    return CudaCopies(device) if device is not None and device.type == "cuda" else None


def ahead(batches: Iterable[Any], copies: Copies) -> Iterator[Any]:
    """The same batches in the same order, each copied while the one before it is in use.

    An error in reading is raised when its batch is due, after the one before it was handed out.
    """
    iterator = iter(batches)
    coming = _begin(iterator, copies)
    while coming is not None:
        if isinstance(coming, Exception):
            try:
                raise coming
            finally:
                del coming  # else error and frame reference each other and keep the batches alive
        (batch,) = coming
        # Before the next copy starts: else the program's stream would wait for that one too.
        copies.finish(batch)
        coming = _begin(iterator, copies)
        yield batch


def _begin(iterator: Iterator[Any], copies: Copies) -> tuple[Any] | Exception | None:
    """Start the next batch's copy: a tuple of the batch (which may be None), an error, or None at the end."""
    try:
        return (copies.start(next(iterator)),)
    except StopIteration:
        return None
    except Exception as error:
        return error
