"""Before torch forms the group: wait for all ranks, and refuse missing, duplicate or mismatched ones."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import psutil
import torch.distributed as torch_dist

from dist_train.distributed.stores.torch_stores import Store
from dist_train.errors import RendezvousError
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.this_machine import this_machine

logger = logging.getLogger(__name__)

HANDSHAKE_KEY = "dist-train-hello/"
_VERDICT = "dist-train-membership"
_LOG_EVERY_S = 15.0
# How often a rank that waits for rank 0 looks whether rank 0 is dead.
_LOOK_EVERY_S = 0.2
_MISSING_HINT = (
    "check that they were started, with the same world size and the same address; "
    "timeout_s of dt.init is how long ranks wait for each other"
)


@dataclass(frozen=True)
class Handshake:
    """What a rank writes about itself; `machine` tells for whom its pid means something."""

    host: str
    machine: str
    pid: int
    gpu: str | None

    @classmethod
    def of_this_process(cls, gpu: str | None) -> Handshake:
        return cls(socket.gethostname(), this_machine(), os.getpid(), gpu)

    def is_dead(self) -> bool:
        """True only where this process can know it."""
        return bool(self.machine) and self.machine == this_machine() and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (", which is dead" if self.is_dead() else "")


@dataclass(frozen=True)
class MembershipCheck:
    """Waits for `world_size` ranks in a store that is fresh, or prefixed for this start.

    Args:
        deadline: time.monotonic() by which all ranks must have come.
        taken: makes the error for a rank number that is already taken in the store; None: the store
            is a launcher's, which assigns each rank once, so that it is not checked.
    """

    store: Store
    rank: int
    world_size: int
    deadline: float
    taken: Callable[[str], RendezvousError] | None = None

    def wait_for_all(self, gpu: str | None = None) -> None:
        """Return on all ranks once every rank has come.

        Args:
            gpu: unique id of this rank's GPU; two ranks on one are refused.

        Raises:
            RendezvousError: naming the missing ranks, the duplicate rank or the shared GPU.
        """
        try:
            self._send_handshake(json.dumps(asdict(Handshake.of_this_process(gpu))))
            verdict = self._collect() if self.rank == 0 else self._await_verdict()
        except torch_dist.DistError as error:
            raise RendezvousError(
                "rank 0's store went away while ranks were coming together",
                cause=str(error).partition("\n")[0],
                hint="see why it ended in the log of rank 0",
            ) from None
        if verdict["what"]:
            raise RendezvousError(str(verdict["what"]), hint=str(verdict["hint"]))
        if verdict["world_size"] != self.world_size:
            raise self._refused(
                f"it was made for {verdict['world_size']} ranks, this one is of {self.world_size}"
            )

    def _send_handshake(self, own: str) -> None:
        key = f"{HANDSHAKE_KEY}{self.rank}"
        if self.taken is None:
            self.store.set(key, own)
        elif self.store.compare_set(key, "", own).decode() != own:
            raise self._refused(f"rank {self.rank} was taken by {self._handshake_of(self.rank)}")

    def _refused(self, cause: str) -> RendezvousError:
        return self.taken(cause) if self.taken else RendezvousError("ranks do not fit together", cause=cause)

    def _handshake_of(self, rank: int) -> Handshake:
        return Handshake(**json.loads(self.store.get(f"{HANDSHAKE_KEY}{rank}")))

    def _is_here(self, rank: int) -> bool:
        return bool(self.store.check([f"{HANDSHAKE_KEY}{rank}"]))

    def _collect(self) -> dict[str, str | int]:
        """Rank 0: wait for all ranks, then publish the verdict."""
        began = time.monotonic()
        next_log = began + _LOG_EVERY_S
        missing = list(range(self.world_size))
        what = hint = ""
        while missing := [rank for rank in missing if not self._is_here(rank)]:
            now = time.monotonic()
            if now >= self.deadline:
                what = f"{name_ranks(missing)} of {self.world_size} did not come within {now - began:.0f} s"
                hint = _MISSING_HINT
                break
            if now >= next_log:
                logger.warning(
                    "waiting for %s of %d (%.0f s so far)", name_ranks(missing), self.world_size, now - began
                )
                next_log = now + _LOG_EVERY_S
            time.sleep(0.01)
        if not missing:
            what, hint = unlike_devices([self._handshake_of(rank) for rank in range(self.world_size)])
        verdict: dict[str, str | int] = {"what": what, "hint": hint, "world_size": self.world_size}
        self.store.set(_VERDICT, json.dumps(verdict))
        return verdict

    def _wait_for_verdict(self, seconds: float) -> None:
        try:
            # The store answers when the key is there: to ask again and again costs each rank up to a pause.
            self.store.wait([_VERDICT], timedelta(seconds=seconds))
        except RuntimeError:
            return  # not yet; a store that is gone raises the same class, and the next call of it says so

    def _await_verdict(self) -> dict[str, str | int]:
        # Rank 0 has the same time-out and publishes first; the extra seconds let its verdict arrive.
        limit = self.deadline + 5.0
        while not self.store.check([_VERDICT]):
            if self.taken and self._is_here(0) and self._handshake_of(0).is_dead():
                raise self._refused(f"rank 0 was taken by {self._handshake_of(0)}")
            if time.monotonic() >= limit:
                missing = [rank for rank in range(self.world_size) if not self._is_here(rank)]
                what = f"{name_ranks(missing or [0])} of {self.world_size} did not come in time"
                return {"what": what, "hint": _MISSING_HINT, "world_size": self.world_size}
            self._wait_for_verdict(_LOOK_EVERY_S)
        found: dict[str, str | int] = json.loads(self.store.get(_VERDICT))
        return found


def unlike_devices(handshakes: Sequence[Handshake]) -> tuple[str, str]:
    """What is wrong with the ranks' devices, and a hint; two empty texts if nothing is."""
    without = [rank for rank, handshake in enumerate(handshakes) if handshake.gpu is None]
    if without and len(without) < len(handshakes):
        host = handshakes[without[0]].host
        return (
            f"{name_ranks(without)} would compute on the CPU, the others on GPUs ({host} shows none)",
            "fix that host's driver or CUDA_VISIBLE_DEVICES; --device cpu takes the CPU everywhere",
        )
    shared = _shared_gpu(handshakes)
    return shared, "start one rank per GPU, or check CUDA_VISIBLE_DEVICES and LOCAL_RANK" if shared else ""


def _shared_gpu(handshakes: Sequence[Handshake]) -> str:
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, handshake in enumerate(handshakes):
        if handshake.gpu is not None:
            owners[handshake.host, handshake.gpu].append(rank)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            return f"{name_ranks(ranks)} use the same GPU {gpu} of {host}"
    return ""
