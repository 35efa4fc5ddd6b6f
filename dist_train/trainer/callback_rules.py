"""The rules that a callback must keep, checked around its calls: the RNG state, and collectives.

Each rank sends its events (a collective inside a callback, the end of a hook) to the next rank and receives
the previous rank's, on the control group: constant cost at any world size, and wherever the ranks' events
differ, two neighbours see it. A collective waits for the previous rank's event before it begins, so that it
never meets another one of the training. The end of a hook is an event at the first calls and at every 16th
later one; in between, a rank that is alone with its collective fails after the collective time-out. Both
errors name the callback. Not checked: subgroups, point-to-point operations, functional collectives
(torch.distributed._functional_collectives).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as torch_dist
from torch.utils._python_dispatch import TorchDispatchMode

from dist_train.distributed.control_group import Control
from dist_train.distributed.seeding import cuda_in_use
from dist_train.errors import ConfigError

# Checks that cost more than some microseconds: at the first calls of each hook, then at every n-th.
FIRST_CALLS = 32
EVERY_CALLS = 16
_TAG = 0x63616C6C
_END = 0
_FRACTION = 0.8
# Sent and received by some ranks only, as they are meant to be.
_POINT_TO_POINT = frozenset({"send", "recv_", "recv_any_source_"})


def is_checked(call: int) -> bool:
    """Whether call number `call` (0, 1, …) of a hook gets the costly checks."""
    return call < FIRST_CALLS or call % EVERY_CALLS == 0


@dataclass(frozen=True)
class RngSnapshot:
    """The state of the global RNGs; NumPy's and python's only where `full`."""

    torch_cpu: torch.Tensor
    torch_cuda: torch.Tensor | None
    python: Any
    numpy: Any

    @classmethod
    def take(cls, full: bool) -> RngSnapshot:
        """Now; moves none of them."""
        return cls(
            torch.get_rng_state(),
            torch.cuda.get_rng_state() if cuda_in_use() else None,
            random.getstate() if full else None,
            np.random.get_state() if full else None,
        )

    def moved_since(self, before: RngSnapshot) -> str | None:
        """The RNG whose state is another than before."""
        if not torch.equal(self.torch_cpu, before.torch_cpu):
            return "torch's RNG"
        cuda = (before.torch_cuda, self.torch_cuda)
        if cuda[0] is not None and cuda[1] is not None and not torch.equal(cuda[0], cuda[1]):
            return "torch's CUDA RNG"
        if self.python != before.python:
            return "python's `random`"
        if self.numpy is not None and (
            self.numpy[2:] != before.numpy[2:] or not np.array_equal(self.numpy[1], before.numpy[1])
        ):
            return "NumPy's global RNG"
        return None


def check_rng(before: RngSnapshot, full: bool, name: str, hook: str) -> RngSnapshot:
    """The snapshot after a callback's call.

    Raises:
        ConfigError: it is not the one before.
    """
    after = RngSnapshot.take(full)
    moved = after.moved_since(before)
    if moved is not None:
        raise ConfigError(
            f"the callback {name} drew from {moved} in {hook}",
            cause="what the training draws next would depend on the callback",
            hint="draw from a generator of your own: torch.Generator, random.Random, np.random.default_rng",
        )
    return after


class CollectiveCheck:
    """Compares the collectives of callbacks between ranks before each one begins.

    Args:
        names: of the callbacks, in the order of the list (equal on all ranks).
        timeout_s: of collectives. A rank waits a little less for the previous one: this error, which names
            the callback, comes before those of the hang watchdog and of the other ranks' collectives.
    """

    def __init__(self, control: Control, names: Sequence[str], timeout_s: float) -> None:
        self._control = control
        self._timeout = timedelta(seconds=_FRACTION * timeout_s)
        self._names = list(names)

    @contextmanager
    def inside(self, index: int, hook: str) -> Iterator[None]:
        """Check every collective that callback number `index` begins in here."""
        if self._control.world_size == 1:
            yield
            return
        with _CollectiveMode(self, index, hook):
            yield

    def end(self, hook: str) -> None:
        """All callbacks of a hook are done here: the previous rank must say so, too. Blocking."""
        if self._control.world_size > 1:
            self._exchange(_END, f"after {hook}", hook)

    def begin(self, index: int, operation: str, hook: str) -> None:
        """Callback number `index` is about to run a collective; returns once the previous rank is, too."""
        event = index + 1 << 32 | zlib.crc32(operation.encode())
        self._exchange(event, f"{operation} of the callback {self._names[index]} in {hook}", hook)

    def _exchange(self, event: int, what: str, hook: str) -> None:
        control, group = self._control, self._control.group
        following, previous = (control.rank + 1) % control.world_size, (control.rank - 1) % control.world_size
        ours, theirs = torch.tensor([event]), torch.zeros(1, dtype=torch.int64)
        try:
            sent = torch_dist.isend(ours, following, group=group, tag=_TAG)
            received = torch_dist.irecv(theirs, previous, group=group, tag=_TAG)
            assert sent is not None
            assert received is not None
            received.wait(self._timeout)
            sent.wait(self._timeout)
        except RuntimeError as error:
            if event == _END:
                # Rank `previous` has failed, or is still in a callback; its own error is the root cause.
                error.add_note(f"waited for rank {previous} at the end of the callbacks' {hook}")
                raise
            raise _only_here(f"{what} on rank {control.rank}, not on rank {previous}", error) from error
        found = int(theirs.item())
        if found != event:
            where = f"rank {control.rank} is at {self._described(event, hook)}, rank {previous} at "
            raise _only_here(where + self._described(found, hook))

    def _described(self, event: int, hook: str) -> str:
        if event == _END:
            return f"the end of {hook}"
        return f"a collective of the callback {self._names[(event >> 32) - 1]}"


class _CollectiveMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation on tensors in a callback; asks before a collective of all ranks runs."""

    def __init__(self, check: CollectiveCheck, index: int, hook: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._check = check
        self._index = index
        self._hook = hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            operation = func.name().removeprefix("c10d::")
            if operation not in _POINT_TO_POINT and _is_of_all_ranks(args):
                self._check.begin(self._index, operation.strip("_"), self._hook)
        return func(*args, **(kwargs or {}))


def _is_of_all_ranks(args: Sequence[Any]) -> bool:
    for value in args:
        if isinstance(value, torch.ScriptObject) and str(value._type()).endswith(".ProcessGroup"):
            group = torch_dist.ProcessGroup.unbox(value)
            return bool(group.size() == torch_dist.get_world_size())
    return True


def _only_here(what: str, error: RuntimeError | None = None) -> ConfigError:
    return ConfigError(
        f"a collective that not all ranks run: {what}",
        cause="the ranks would wait for each other for ever"
        if error is None
        else f"it was waited for: {error}",
        hint="run it on all ranks or on none: not under `if context.run.is_main`",
    )
