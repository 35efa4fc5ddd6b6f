"""The control group: small facts that ranks must agree on, never gradients.

It is a gloo group of its own, also beside NCCL, so that a stop flag or a checkpoint's fate can be
agreed while the device's queue is full. Values travel as JSON, never as pickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as torch_dist

# Anything that json.dumps takes and gives back equal: no tuples, string keys only.
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Coming(Generic[T]):
    """A value that is on its way.

    Args:
        get: waits for it.
        has_come: whether `get` would not wait.
    """

    get: Callable[[], T]
    has_come: Callable[[], bool] = lambda: True

    def then(self, change: Callable[[T], U]) -> Coming[U]:
        """What it is changed into, once it has come."""
        return Coming(lambda: change(self.get()), self.has_come)


class Control:
    """Collectives over all ranks for small values; with one process every call is local.

    Args:
        group: a gloo group over all ranks, or None when the job has one process.
        rank: this process's rank.
        world_size: number of ranks.
    """

    def __init__(
        self, group: torch_dist.ProcessGroup | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        if group is None and world_size != 1:
            raise ValueError(f"a control group of {world_size} ranks needs a process group")
        self.group = group
        self.rank = rank
        self.world_size = world_size

    @property
    def is_main(self) -> bool:
        """True on rank 0: for what must happen once in the job."""
        return self.rank == 0

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until every rank is here; raises RuntimeError after `timeout_s` seconds."""
        if self.group is None:
            return
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        torch_dist.monitored_barrier(self.group, timeout=timeout)

    def max_int(self, value: int) -> int:
        """The largest of all ranks' values, on every rank."""
        if self.group is None:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        torch_dist.all_reduce(box, op=torch_dist.ReduceOp.MAX, group=self.group)
        return int(box.item())

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise float64 sum over ranks, on every rank."""
        return self.sum_later(values).get()

    def sum_later(self, values: list[float]) -> Coming[list[float]]:
        """As `sum`, begun now."""
        if self.group is None:
            return Coming(lambda: list(values))
        box = torch.tensor(values, dtype=torch.float64)
        work = torch_dist.all_reduce(box, group=self.group, async_op=True)

        def arrived() -> list[float]:
            work.wait()
            return [float(v) for v in box.tolist()]

        return Coming(arrived, work.is_completed)

    def broadcast(self, value: JsonValue, src: int = 0) -> JsonValue:
        """Rank `src`'s value on every rank; the others' argument is ignored."""
        if self.group is None:
            return value
        payload = json.dumps(value).encode() if self.rank == src else b""
        size = torch.tensor([len(payload)], dtype=torch.int64)
        torch_dist.broadcast(size, src=src, group=self.group)
        box = _to_tensor(payload) if self.rank == src else torch.empty(int(size.item()), dtype=torch.uint8)
        torch_dist.broadcast(box, src=src, group=self.group)
        return json.loads(bytes(box.numpy().tobytes()))  # type: ignore[no-any-return]

    def all_gather(self, value: JsonValue) -> list[JsonValue]:
        """Every rank's value, in rank order, on every rank."""
        if self.group is None:
            return [value]
        return [json.loads(raw) for raw in self.all_gather_bytes(json.dumps(value).encode())]

    def all_gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every rank's bytes (lengths may differ), in rank order, on every rank."""
        if self.group is None:
            return [payload]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        torch_dist.all_gather(sizes, torch.tensor([len(payload)], dtype=torch.int64), group=self.group)
        lengths = [int(size.item()) for size in sizes]
        # all_gather wants equal shapes: pad to the longest, at least one byte.
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        padded[: len(payload)] = _to_tensor(payload)
        boxes = [torch.zeros_like(padded) for _ in range(self.world_size)]
        torch_dist.all_gather(boxes, padded, group=self.group)
        return [box.numpy().tobytes()[:length] for box, length in zip(boxes, lengths, strict=True)]


def _to_tensor(payload: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        if payload
        else torch.empty(0, dtype=torch.uint8)
    )
