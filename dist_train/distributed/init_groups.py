"""Form the process groups: the store, the membership check, torch's group and the control group."""

from __future__ import annotations

import logging
import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as torch_dist

from dist_train import env
from dist_train.distributed import devices
from dist_train.distributed.control_group import Control
from dist_train.distributed.group_teardown.deadlines import bounded_start
from dist_train.distributed.group_teardown.process_group_lifetime import keep_groups_for_reducers
from dist_train.distributed.init_method import FileRendezvous, Rendezvous, TcpRendezvous, parse
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.distributed.membership_check import MembershipCheck
from dist_train.distributed.stores import file_store, tcp_store
from dist_train.distributed.stores.torch_stores import PrefixStore, Store
from dist_train.env import RankInfo
from dist_train.errors import ConfigError, RendezvousError

logger = logging.getLogger(__name__)

# Set by torch elastic when its agent serves the store: then every rank is a client.
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_MIN_TIMEOUT_S = 1.0
# How often all ranks have come together so far, also where they were refused then: it prefixes the keys of
# the next time, which must not collide with the last one's.
_formed = 0
# TCP stores, kept until the process ends: a second run of the same processes would otherwise race with
# the shutdown of the first one's server, and a rank that is refused with that of rank 0's.
_kept: dict[Rendezvous, Store] = {}


@dataclass(frozen=True)
class ProcessGroups:
    """What a start gives.

    Args:
        control: the control group.
        drawn: a random number of 32 bits, the same on all ranks.
        file: the rendezvous file, which is removed at the end.
        exchange: by the store.
    """

    control: Control
    drawn: int
    file: FileRendezvous | None = None
    exchange: KeyedExchange | None = None

    def clean_up(self) -> None:
        """Remove the rendezvous file: on rank 0, after all ranks have left the group."""
        if self.file is not None and self.control.is_main:
            file_store.remove(self.file.path)


def init_groups(
    info: RankInfo,
    device: torch.device,
    *,
    init_method: str = "env://",
    timeout_s: float = 600.0,
    collective_timeout_s: float | None = None,
    attempt: int | None = None,
    seed: int | None = None,
) -> ProcessGroups:
    """Form the job's process group and the control group.

    Args:
        info: this rank's facts.
        device: as bound by devices.bind; CUDA gets nccl beside gloo.
        init_method: env://, tcp://host:port or file:///path.
        timeout_s: limit for the whole start.
        collective_timeout_s: limit for every collective; None: timeout_s.
        attempt: number of the attempt under our agent.
        seed: what this rank was given; unlike ones are refused.

    Raises:
        ConfigError: for an init method that is not one of the three forms, and for unlike seeds.
        RendezvousError: when the ranks do not find each other; it names the reason.
    """
    global _formed
    if timeout_s < _MIN_TIMEOUT_S:
        raise ConfigError(f"timeout_s is {timeout_s:g}", cause="ranks need at least a second to meet")
    if torch_dist.is_initialized():
        raise ConfigError(
            "a process group exists already",
            cause="something called torch.distributed.init_process_group before dt.init",
            hint="remove that call: dt.init makes the group",
        )
    if info.world_size == 1:
        # With one process a group would only cost a port and threads: every collective of ours is
        # local then.
        return ProcessGroups(Control(), secrets.randbits(32))
    agent_store = os.environ.get(_AGENT_STORE) == "True" and init_method == "env://"
    rendezvous = parse(init_method, info, agent_store=agent_store, attempt=attempt)
    if isinstance(rendezvous, FileRendezvous) and _formed:
        rendezvous = FileRendezvous(rendezvous.path.with_name(f"{rendezvous.path.name}.{_formed}"))
    with bounded_start(
        timeout_s + 15.0, f"the start of rank {info.rank} of {info.world_size} at {rendezvous}"
    ):
        deadline = time.monotonic() + timeout_s
        base = _kept.get(rendezvous) or _open(rendezvous, info, deadline, timeout_s)
        secret = os.environ.get(env.STORE_PREFIX) or "dist-train"
        store = PrefixStore(f"{secret}/{attempt or 0}/{_formed}", base)
        check = MembershipCheck(store, info.rank, info.world_size, deadline, _taken(rendezvous))
        verdict = check.wait_for_all(devices.unique_id(device), seed)
        _formed += 1
        if isinstance(rendezvous, TcpRendezvous):
            _kept[rendezvous] = base
        verdict.check()
        collective_s = collective_timeout_s or timeout_s
        control = _form(store, info, device, collective_s)
        exchange = KeyedExchange(PrefixStore("exchange", store), info.rank, info.world_size, collective_s)
    file = rendezvous if isinstance(rendezvous, FileRendezvous) else None
    return ProcessGroups(control, verdict.drawn, file, exchange)


def _open(rendezvous: Rendezvous, info: RankInfo, deadline: float, timeout_s: float) -> Store:
    if isinstance(rendezvous, FileRendezvous):
        return file_store.open_store(rendezvous.path, info.world_size)
    return tcp_store.open_store(rendezvous, info.rank, info.world_size, deadline, timeout_s)


def _taken(rendezvous: Rendezvous) -> _Taken | None:
    if isinstance(rendezvous, TcpRendezvous) and rendezvous.hosted:
        return None
    return _Taken(rendezvous)


@dataclass(frozen=True)
class _Taken:
    """Make the error for a rank whose number is taken."""

    rendezvous: Rendezvous

    def __call__(self, cause: str) -> RendezvousError:
        if isinstance(self.rendezvous, FileRendezvous):
            return file_store.stale(self.rendezvous.path, cause)
        return RendezvousError(
            f"the ranks at {self.rendezvous} do not fit together", cause=cause, hint="start each rank once"
        )


def _form(store: Store, info: RankInfo, device: torch.device, timeout_s: float) -> Control:
    try:
        return _torch_groups(store, info, device, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RendezvousError(
            f"all {info.world_size} ranks are here, but they cannot form a group",
            cause=str(error).partition("\n")[0],
            hint="a firewall between the nodes, or the wrong interface: see --interface",
        ) from error


def _torch_groups(store: Store, info: RankInfo, device: torch.device, timeout: timedelta) -> Control:
    on_gpu = device.type == "cuda"
    # For ranks started by hand; those of an agent have it from their first import of torch.
    keep_groups_for_reducers()
    torch_dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
        # Torch refuses a CPU here; with a GPU it opens NCCL now, so that a fault shows at the start.
        device_id=device if on_gpu else None,
    )
    # A group of its own also on CPU: a stop vote must not queue behind gradients.
    group = torch_dist.new_group(backend="gloo", timeout=timeout)
    logger.debug("rank %d of %d: groups formed on %s", info.rank, info.world_size, device)
    return Control(group, info.rank, info.world_size, store, timeout)
