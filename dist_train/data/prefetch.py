"""The next batch on its way to the GPU while the current one trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from dist_train.distributed.nested import map_tensors
from dist_train.distributed.transfer import to_device


class Copies(Protocol):
    """Begins copies that run beside the program, and makes the program's work wait for one."""

    def start(self, batch: Any) -> Any:
        """Begin to copy; what is returned must not be read before `finish`."""
        ...

    def finish(self, batch: Any) -> None:
        """From here on the batch may be used."""
        ...


class CudaCopies:
    """Copies on a stream of their own.

    Args:
        device: where batches go; pinned memory makes their copies overlap with the training.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> Any:
        # What the program has dropped is free memory to this stream, though kernels may still read it
        # (`hold` does not see into objects that move themselves). They are the last step's: the copy
        # runs beside the one that comes.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return to_device(batch, self._device)

    def finish(self, batch: Any) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)

        def hold(tensor: torch.Tensor) -> torch.Tensor:
            # Made on the side stream: its memory must not be given away before this stream is done with
            # it, to whoever else has been given the same stream (torch has a pool of them).
            if tensor.is_cuda and tensor.layout == torch.strided:
                tensor.record_stream(current)
            return tensor

        map_tensors(batch, hold)


def copies_to(device: torch.device | None) -> Copies | None:
    """How batches come to this device ahead of time; None where there is nothing to copy."""
    return CudaCopies(device) if device is not None and device.type == "cuda" else None


def ahead(batches: Iterable[Any], copies: Copies) -> Iterator[Any]:
    """The same batches in the same order, each copied while the one before it is in use.

    An error in reading comes when its batch is due, after the one before it has been handed out.
    """
    iterator = iter(batches)
    coming = _begin(iterator, copies)
    while coming is not None:
        if isinstance(coming, Exception):
            try:
                raise coming
            finally:
                del coming  # else error and frame hold each other, and the batches
        (batch,) = coming
        # Before the next copy begins: else the program's stream would wait for that one too.
        copies.finish(batch)
        coming = _begin(iterator, copies)
        yield batch


def _begin(iterator: Iterator[Any], copies: Copies) -> tuple[Any] | Exception | None:
    """The next batch in a tuple of its own (it may be None), the error instead of it, None at the end."""
    try:
        return (copies.start(next(iterator)),)
    except StopIteration:
        return None
    except Exception as error:
        return error
