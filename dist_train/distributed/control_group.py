"""The control group: collectives for small values that ranks must agree on, never for gradients.

It is a gloo group of its own, also beside NCCL, so that ranks can agree on a stop or on a checkpoint's
commit while the device's queue is full. Values travel as JSON, never as pickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as torch_dist

from dist_train.distributed.stores.torch_stores import Store
from dist_train.rundir.times.span_clock import COMMUNICATION, COMPUTE, span_clock

# Anything that json.dumps takes and gives back equal: no tuples, string keys only.
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Deferred(Generic[T]):
    """The value of a collective that was started and may still be running.

    Args:
        get: wait for the value and return it.
        is_ready: whether `get` would return at once.
    """

    get: Callable[[], T]
    is_ready: Callable[[], bool] = lambda: True

    def then(self, change: Callable[[T], U]) -> Deferred[U]:
        """The value of `change`, applied when the value is there."""
        return Deferred(lambda: change(self.get()), self.is_ready)


class Control:
    """Collectives over all ranks for small values; with one process every call is local.

    Args:
        group: a gloo group over all ranks, or None when the job has one process.
        rank: this process's rank.
        world_size: number of ranks.
        store: of the job, for what one rank tells without waiting for the others.
        timeout: of the group; None for torch's default.
    """

    def __init__(
        self,
        group: torch_dist.ProcessGroup | None = None,
        rank: int = 0,
        world_size: int = 1,
        store: Store | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if group is None and world_size != 1:
            raise ValueError(f"a control group of {world_size} ranks needs a process group")
        self.group = group
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.timeout = timeout

    @property
    def is_main(self) -> bool:
        """True on rank 0: for what must happen once per job."""
        return self.rank == 0

    def with_own_group(self) -> Control:
        """Make a control of the same ranks whose collectives may run beside this one's (collective)."""
        if self.group is None:
            return Control(None, self.rank, self.world_size, self.store)
        ranks = torch_dist.get_process_group_ranks(self.group)
        group = torch_dist.new_group(ranks, backend="gloo", timeout=self.timeout)
        return Control(group, self.rank, self.world_size, self.store, self.timeout)

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until every rank has called this; raises RuntimeError after `timeout_s` seconds."""
        if self.group is None:
            return
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        torch_dist.monitored_barrier(self.group, timeout=timeout)

    def max_int(self, value: int) -> int:
        """The largest of all ranks' values, on every rank."""
        if self.group is None:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        with waiting_for_ranks():
            torch_dist.all_reduce(box, op=torch_dist.ReduceOp.MAX, group=self.group)
        return int(box.item())

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise float64 sum over ranks, on every rank."""
        return self.sum_later(values).get()

    def sum_later(self, values: list[float]) -> Deferred[list[float]]:
        """Start a `sum` and return without waiting for it."""
        if self.group is None:
            return Deferred(lambda: list(values))
        box = torch.tensor(values, dtype=torch.float64)
        work = torch_dist.all_reduce(box, group=self.group, async_op=True)

        def arrived() -> list[float]:
            with waiting_for_ranks():
                work.wait()
            return [float(v) for v in box.tolist()]

        return Deferred(arrived, work.is_completed)

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


@contextmanager
def waiting_for_ranks() -> Iterator[None]:
    """Within a step: count this time for communication and not for compute."""
    times = span_clock()
    in_step = times.part == COMPUTE
    if in_step:
        times.switch(COMMUNICATION)
    try:
        yield
    finally:
        if in_step:
            times.end_wait(COMMUNICATION)


def _to_tensor(payload: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        if payload
        else torch.empty(0, dtype=torch.uint8)
    )
