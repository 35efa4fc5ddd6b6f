"""Send what a stage returns to the next one, and the gradients back.

Each message begins with a header of dtypes and shapes: micro-batches of a step may be of unequal sizes, and a
step may be shorter than the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from dist_train.errors import UsageError

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_MOST_TENSORS, _MOST_DIMENSIONS = 8, 8
_OF_TENSOR = 3 + _MOST_DIMENSIONS
# How many tensors, whether they are a tuple, and the seed of the pass; then each tensor.
_OF_PASS = 3
_HEADER = _OF_PASS + _MOST_TENSORS * _OF_TENSOR
Group = torch_dist.ProcessGroup


@dataclass
class Sending:
    """Messages on their way: their memory is kept until they have arrived."""

    _waiting: list[tuple[Any, Tensor]] = field(default_factory=list)

    def send(self, tensor: Tensor, to: int, group: Group) -> None:
        """Begin to send a tensor, as bytes."""
        raw = _as_bytes(tensor.detach().contiguous())
        if raw.numel():
            self._waiting.append((torch_dist.isend(raw, to, group=group), raw))

    def finish(self, all_but: int = 0) -> None:
        """Wait until everything has arrived, but for so many of the newest messages."""
        # gloo does not say of a message that it has arrived: it must be waited for.
        while len(self._waiting) > all_but:
            work, _ = self._waiting.pop(0)
            work.wait()


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors that a stage returns to the next one.

    Raises:
        UsageError: it is neither a tensor nor a tuple of a few.
    """
    tensors = list(output) if isinstance(output, tuple) else [output]
    known = all(isinstance(t, Tensor) and t.dtype in _DTYPES and t.dim() <= _MOST_DIMENSIONS for t in tensors)
    if not known or not 0 < len(tensors) <= _MOST_TENSORS:
        shown = [
            f"{t.dtype} {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__ for t in tensors
        ]
        raise UsageError(
            f"the last layer of a stage returns {type(output).__name__} ({', '.join(shown[:8])})",
            cause=f"a tensor, or a tuple of at most {_MOST_TENSORS}, can be sent to the next stage",
            hint="let the layers pass tensors on, or cut the stages elsewhere: split=[names of layers]",
        )
    return tensors


def send_output(
    output: Any, to: int, headers: Group, group: Group, sending: Sending, seed: int
) -> list[Tensor]:
    """Begin to send a stage's output; return its tensors.

    Args:
        seed: of the pass, which all stages have drawn.
    """
    tensors = tensors_of(output)
    header = torch.zeros(_HEADER, dtype=torch.int64)
    header[:_OF_PASS] = torch.tensor([len(tensors), int(isinstance(output, tuple)), seed])
    for place, tensor in enumerate(tensors):
        row = [_DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape]
        begin = _OF_PASS + place * _OF_TENSOR
        header[begin : begin + len(row)] = torch.tensor(row)
    sending.send(header, to, headers)
    for tensor in tensors:
        sending.send(tensor, to, group)
    return tensors


@dataclass
class Received:
    """A tensor of the stage before that wants its gradient.

    Args:
        value: as it came.
        gradient: of the loss, once a backward pass has reached it.
    """

    value: Tensor
    gradient: Tensor | None = None

    def begin(self) -> Tensor:
        """The tensor with which this rank's graph begins. No leaf: a layer may change it in place."""
        begun: Tensor = _Begin.apply(torch.empty(0, requires_grad=True), self)  # type: ignore[no-untyped-call]
        return begun


class _Begin(torch.autograd.Function):
    """Gives a value, and takes its gradient. (The first argument only makes torch record it.)"""

    @staticmethod
    def forward(ctx: Any, recorded: Tensor, received: Received) -> Tensor:
        ctx.received = received
        return received.value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.received.gradient = gradients[0]
        return None, None


def receive_output(
    source: int, headers: Group, group: Group, device: torch.device, seed: int
) -> tuple[Any, list[Received]]:
    """Return what a stage has sent, and those of its tensors that want a gradient.

    Raises:
        UsageError: that stage has drawn another seed.
    """
    header = torch.zeros(_HEADER, dtype=torch.int64)
    receive(header, source, headers)
    count, is_tuple, theirs, *rest = header.tolist()
    if theirs != seed:
        raise UsageError(
            "the stages of a pipeline draw unlike random numbers",
            cause="outside of the model they draw the same ones: which samples come next, which tokens are "
            "masked; here one has drawn more than the others, or has a seed of its own",
            hint="dt.init(seed=...), and no torch.manual_seed by rank; what some ranks draw alone (a plot on "
            "rank 0): from a generator of its own, torch.Generator()",
        )
    tensors, wanting = [], []
    for place in range(count):
        dtype, requires_grad, dim, *shape = rest[place * _OF_TENSOR : (place + 1) * _OF_TENSOR]
        tensor = torch.empty(shape[:dim], dtype=_DTYPES[dtype], device=device)
        receive(tensor, source, group)
        if requires_grad and torch.is_grad_enabled():
            wanting.append(Received(tensor))
            tensor = wanting[-1].begin()
        tensors.append(tensor)
    return (tuple(tensors) if is_tuple else tensors[0]), wanting


def receive(tensor: Tensor, source: int, group: Group) -> None:
    """Fill a contiguous tensor with what a rank has sent."""
    raw = _as_bytes(tensor)
    if raw.numel():
        work = torch_dist.irecv(raw, source, group=group)
        assert work is not None
        work.wait()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
