"""Before torch forms the group: wait for all ranks, and refuse missing, duplicate or mismatched ones.

All that the ranks must agree on at the start goes through the store with that: each collective would be a
round through all ranks more.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import psutil
import torch.distributed as torch_dist

from dist_train.distributed.stores.torch_stores import Store
from dist_train.errors import ConfigError, RendezvousError
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.this_machine import this_machine

logger = logging.getLogger(__name__)

HANDSHAKE_KEY = "dist-train-hello/"
_VERDICT = "dist-train-membership"
_LOG_EVERY_S = 15.0
# In a store of the ranks' own: how often a rank that waits looks whether rank 0 is dead.
_LOOK_EVERY_S = 0.2
_LONGEST_PAUSE_S = 0.05
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
    seed: int | None

    @classmethod
    def of_this_process(cls, gpu: str | None, seed: int | None) -> Handshake:
        return cls(socket.gethostname(), this_machine(), os.getpid(), gpu, seed)

    def is_dead(self) -> bool:
        """True only where this process can know it."""
        return bool(self.machine) and self.machine == this_machine() and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (", which is dead" if self.is_dead() else "")


@dataclass(frozen=True)
class Verdict:
    """What rank 0 says when all ranks have come, or too few.

    Args:
        world_size: for which it was made.
        what: is wrong; empty where nothing is.
        cause: of that.
        hint: against it.
        kind: the name of the error's class.
        drawn: a random number of 32 bits.
    """

    world_size: int
    what: str = ""
    cause: str | None = None
    hint: str = ""
    kind: str = RendezvousError.__name__
    drawn: int = 0

    def check(self) -> None:
        """Raise what is wrong.

        Raises:
            RendezvousError: naming the missing ranks or the shared GPU.
            ConfigError: naming a rank with another seed.
        """
        if self.what:
            kind = ConfigError if self.kind == ConfigError.__name__ else RendezvousError
            raise kind(self.what, cause=self.cause, hint=self.hint)


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

    def wait_for_all(self, gpu: str | None = None, seed: int | None = None) -> Verdict:
        """Return on all ranks once every rank has come, or the deadline has passed.

        Args:
            gpu: unique id of this rank's GPU; two ranks on one are refused.
            seed: what this rank was given; unlike seeds are refused.

        Returns:
            The same on all ranks; it may say that they do not fit together.

        Raises:
            RendezvousError: this rank is none of them, or the store is gone.
        """
        try:
            self._send_handshake(json.dumps(asdict(Handshake.of_this_process(gpu, seed))))
            verdict = self._collect() if self.rank == 0 else self._await_verdict()
        except torch_dist.DistError as error:
            raise RendezvousError(
                "rank 0's store went away while ranks were coming together",
                cause=str(error).partition("\n")[0],
                hint="see why it ended in the log of rank 0",
            ) from None
        if not verdict.what and verdict.world_size != self.world_size:
            raise self._refused(
                f"it was made for {verdict.world_size} ranks, this one is of {self.world_size}"
            )
        return verdict

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

    def _collect(self) -> Verdict:
        """Rank 0: wait for all ranks, then publish the verdict."""
        began = time.monotonic()
        next_log = began + _LOG_EVERY_S
        verdict = Verdict(self.world_size, drawn=secrets.randbits(32))
        while missing := self._wait_for_ranks():
            now = time.monotonic()
            if now >= self.deadline:
                what = f"{name_ranks(missing)} of {self.world_size} did not come within {now - began:.0f} s"
                verdict = Verdict(self.world_size, what, hint=_MISSING_HINT)
                break
            if now >= next_log:
                logger.warning(
                    "waiting for %s of %d (%.0f s so far)", name_ranks(missing), self.world_size, now - began
                )
                next_log = now + _LOG_EVERY_S
        if not missing:
            handshakes = [self._handshake_of(rank) for rank in range(self.world_size)]
            verdict = unlike_devices(handshakes) or unlike_seeds(handshakes) or verdict
        self.store.set(_VERDICT, json.dumps(asdict(verdict)))
        return verdict

    def _wait_for_ranks(self) -> list[int]:
        """Those that have not come yet, after a short wait for them."""
        keys = [f"{HANDSHAKE_KEY}{rank}" for rank in range(self.world_size)]
        self._wait(keys, self.deadline)
        if self.store.check(keys):
            return []
        return [rank for rank in range(self.world_size) if not self._is_here(rank)]

    def _wait(self, keys: list[str], limit: float) -> None:
        """Return when the keys are there, or after a while, at the latest at `limit`."""
        left = max(0.01, limit - time.monotonic())
        if self.taken:
            self._ask_again(keys, min(_LOOK_EVERY_S, left))
            return
        try:
            # The store answers when the keys are there: to ask again and again costs a pause each time. But
            # each wait that ends without them is two lines of torch's on the console: few and long ones.
            self.store.wait(keys, timedelta(seconds=min(_LOG_EVERY_S, left)))
        except RuntimeError:
            return  # not yet; a store that is gone raises the same class, and the next call of it says so

    def _ask_again(self, keys: list[str], seconds: float) -> None:
        """`_wait` of ranks that no launcher ends: Ctrl-C, and rank 0's death, must not wait for the store."""
        end, pause = time.monotonic() + seconds, 0.001
        while not self.store.check(keys) and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _await_verdict(self) -> Verdict:
        # Rank 0 has the same time-out and publishes first; the extra seconds let its verdict arrive.
        limit = self.deadline + 5.0
        self._wait([_VERDICT], limit)
        while not self.store.check([_VERDICT]):
            if self.taken and self._is_here(0) and self._handshake_of(0).is_dead():
                raise self._refused(f"rank 0 was taken by {self._handshake_of(0)}")
            if time.monotonic() >= limit:
                missing = [rank for rank in range(self.world_size) if not self._is_here(rank)]
                what = f"{name_ranks(missing or [0])} of {self.world_size} did not come in time"
                return Verdict(self.world_size, what, hint=_MISSING_HINT)
            self._wait([_VERDICT], limit)
        return Verdict(**json.loads(self.store.get(_VERDICT)))


def unlike_devices(handshakes: Sequence[Handshake]) -> Verdict | None:
    """What is wrong with the ranks' devices; None if nothing is."""
    count = len(handshakes)
    without = [rank for rank, handshake in enumerate(handshakes) if handshake.gpu is None]
    if without and len(without) < count:
        host = handshakes[without[0]].host
        return Verdict(
            count,
            f"{name_ranks(without)} would compute on the CPU, the others on GPUs ({host} shows none)",
            hint="fix that host's driver or CUDA_VISIBLE_DEVICES; --device cpu takes the CPU everywhere",
        )
    shared = _shared_gpu(handshakes)
    hint = "start one rank per GPU, or check CUDA_VISIBLE_DEVICES and LOCAL_RANK"
    return Verdict(count, shared, hint=hint) if shared else None


def unlike_seeds(handshakes: Sequence[Handshake]) -> Verdict | None:
    """What is wrong with the ranks' seeds; None if nothing is."""
    first = handshakes[0].seed
    rank = next((rank for rank, each in enumerate(handshakes) if each.seed != first), None)
    if rank is None:
        return None
    return Verdict(
        len(handshakes),
        f"rank {rank} asks for seed {handshakes[rank].seed}, rank 0 for {first}",
        "the order of samples is the same on all ranks; only dt.prepare lets RNG states differ",
        "give dt.init the same seed on every rank",
        ConfigError.__name__,
    )


def _shared_gpu(handshakes: Sequence[Handshake]) -> str:
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, handshake in enumerate(handshakes):
        if handshake.gpu is not None:
            owners[handshake.host, handshake.gpu].append(rank)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            return f"{name_ranks(ranks)} use the same GPU {gpu} of {host}"
    return ""
