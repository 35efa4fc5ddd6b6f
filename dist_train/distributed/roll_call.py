"""Before torch forms the group: who is here, who is missing, who came twice."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import psutil
import torch.distributed as torch_dist

from dist_train.distributed.stores import Store
from dist_train.errors import RendezvousError

logger = logging.getLogger(__name__)

HELLO = "dist-train-hello/"
_VERDICT = "dist-train-roll-call"
_SAY_EVERY_S = 15.0
_MISSING_MEND = (
    "check that they were started, with the same world size and the same address; "
    "timeout_s of dt.init is how long ranks wait for each other"
)


@dataclass(frozen=True)
class Hello:
    """What a rank says of itself; `pids` names the space in which its pid has a meaning."""

    host: str
    pids: str
    pid: int
    gpu: str | None

    @classmethod
    def mine(cls, gpu: str | None) -> Hello:
        try:
            pids = str(os.stat("/proc/self/ns/pid").st_ino)
        except OSError:
            pids = ""
        return cls(socket.gethostname(), pids, os.getpid(), gpu)

    def is_dead(self) -> bool:
        """True only where this process can know it."""
        here = Hello.mine(None)
        return (self.host, self.pids) == (here.host, here.pids) and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (", which is dead" if self.is_dead() else "")


@dataclass(frozen=True)
class RollCall:
    """The meeting of `world_size` ranks in a store that is fresh, or prefixed for this start.

    Args:
        deadline: time.monotonic() by which all must be here.
        taken: makes the error when a rank's place is already taken in the store; None: the store
            is a launcher's, which gives each rank out once, and no place is checked.
    """

    store: Store
    rank: int
    world_size: int
    deadline: float
    taken: Callable[[str], RendezvousError] | None = None

    def meet(self, gpu: str | None = None) -> None:
        """Return on all ranks once every rank is here.

        Args:
            gpu: unique id of this rank's GPU; two ranks on one are refused.

        Raises:
            RendezvousError: naming the missing ranks, the rank that came twice or the shared GPU.
        """
        try:
            self._say_hello(json.dumps(asdict(Hello.mine(gpu))))
            verdict = self._call() if self.rank == 0 else self._await_verdict()
        except torch_dist.DistError as error:
            raise RendezvousError(
                "rank 0's store went away while ranks were coming together",
                cause=str(error).partition("\n")[0],
                mend="the log of rank 0 says why it ended",
            ) from None
        if verdict["what"]:
            raise RendezvousError(str(verdict["what"]), mend=str(verdict["mend"]))
        if verdict["world_size"] != self.world_size:
            raise self._refused(
                f"it was made for {verdict['world_size']} ranks, this one is of {self.world_size}"
            )

    def _say_hello(self, me: str) -> None:
        key = f"{HELLO}{self.rank}"
        if self.taken is None:
            self.store.set(key, me)
        elif self.store.compare_set(key, "", me).decode() != me:
            raise self._refused(f"rank {self.rank} was taken by {self._hello(self.rank)}")

    def _refused(self, cause: str) -> RendezvousError:
        return self.taken(cause) if self.taken else RendezvousError("ranks do not fit together", cause=cause)

    def _hello(self, rank: int) -> Hello:
        return Hello(**json.loads(self.store.get(f"{HELLO}{rank}")))

    def _is_here(self, rank: int) -> bool:
        return bool(self.store.check([f"{HELLO}{rank}"]))

    def _call(self) -> dict[str, str | int]:
        """Rank 0: wait for all, then tell all how it went."""
        began = time.monotonic()
        next_word = began + _SAY_EVERY_S
        missing = list(range(self.world_size))
        what = mend = ""
        while missing := [rank for rank in missing if not self._is_here(rank)]:
            now = time.monotonic()
            if now >= self.deadline:
                what = f"{name_ranks(missing)} of {self.world_size} did not come within {now - began:.0f} s"
                mend = _MISSING_MEND
                break
            if now >= next_word:
                logger.warning(
                    "waiting for %s of %d (%.0f s so far)", name_ranks(missing), self.world_size, now - began
                )
                next_word = now + _SAY_EVERY_S
            time.sleep(0.01)
        if not missing:
            what, mend = unlike_devices([self._hello(rank) for rank in range(self.world_size)])
        verdict: dict[str, str | int] = {"what": what, "mend": mend, "world_size": self.world_size}
        self.store.set(_VERDICT, json.dumps(verdict))
        return verdict

    def _await_verdict(self) -> dict[str, str | int]:
        # Rank 0 has the same time-out and speaks first; the extra seconds let its words arrive.
        limit, pause = self.deadline + 5.0, 0.005
        while not self.store.check([_VERDICT]):
            if self.taken and self._is_here(0) and self._hello(0).is_dead():
                raise self._refused(f"rank 0 was taken by {self._hello(0)}")
            if time.monotonic() >= limit:
                missing = [rank for rank in range(self.world_size) if not self._is_here(rank)]
                what = f"{name_ranks(missing or [0])} of {self.world_size} did not come in time"
                return {"what": what, "mend": _MISSING_MEND, "world_size": self.world_size}
            time.sleep(pause)
            pause = min(0.2, pause * 1.5)
        found: dict[str, str | int] = json.loads(self.store.get(_VERDICT))
        return found


def unlike_devices(hellos: Sequence[Hello]) -> tuple[str, str]:
    """(What is wrong with the ranks' devices, its mend); two empty texts where all is well."""
    without = [rank for rank, hello in enumerate(hellos) if hello.gpu is None]
    if without and len(without) < len(hellos):
        host = hellos[without[0]].host
        return (
            f"{name_ranks(without)} would compute on the CPU, the others on GPUs ({host} shows none)",
            "mend that host's driver or CUDA_VISIBLE_DEVICES; --device cpu takes the CPU everywhere",
        )
    shared = _shared_gpu(hellos)
    return shared, "start one rank per GPU, or check CUDA_VISIBLE_DEVICES and LOCAL_RANK" if shared else ""


def _shared_gpu(hellos: Sequence[Hello]) -> str:
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, hello in enumerate(hellos):
        if hello.gpu is not None:
            owners[hello.host, hello.gpu].append(rank)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            return f"{name_ranks(ranks)} use the same GPU {gpu} of {host}"
    return ""


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5`; at most eight are written out."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
