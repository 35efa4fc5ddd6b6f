"""Starting the process groups: the store, the roll-call, torch's group and the control group."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as torch_dist

from dist_train.distributed import devices, file_store, tcp_store
from dist_train.distributed.bounds import bounded_start
from dist_train.distributed.control import Control
from dist_train.distributed.init_method import FileMeeting, Meeting, TcpMeeting, parse
from dist_train.distributed.roll_call import RollCall
from dist_train.distributed.stores import PrefixStore, Store
from dist_train.env import RankInfo
from dist_train.errors import ConfigError, RendezvousError

logger = logging.getLogger(__name__)

# Set by torchrun's engine when its agent serves the store: then every rank is a client.
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_MIN_TIMEOUT_S = 1.0
# Groups that this process has formed so far, equal on all ranks: the next one must not meet the keys
# of the last.
_formed = 0
# Stores at ports, kept to the process's end: a second run of the same processes would otherwise race
# with the closing of the first one's server.
_kept: dict[Meeting, Store] = {}


@dataclass(frozen=True)
class Started:
    """The control group, and the rendezvous file to remove at the end."""

    control: Control
    file: FileMeeting | None = None

    def clean_up(self) -> None:
        """Remove what the start left behind; rank 0, after everybody has left."""
        if self.file is not None and self.control.is_main:
            file_store.remove(self.file.path)


def start_groups(
    info: RankInfo,
    device: torch.device,
    *,
    init_method: str = "env://",
    timeout_s: float = 600.0,
    collective_timeout_s: float | None = None,
    attempt: int | None = None,
) -> Started:
    """Form the job's process group and the control group.

    Args:
        info: who this rank is.
        device: as bound by devices.bind; CUDA gets nccl beside gloo.
        init_method: env://, tcp://host:port or file:///path.
        timeout_s: for the start as a whole.
        collective_timeout_s: for every collective; None: as for the start.
        attempt: number of the attempt under our agent.

    Raises:
        ConfigError: for an init method that is not one of the three forms.
        RendezvousError: when the ranks do not come together; it names the reason.
    """
    global _formed
    if timeout_s < _MIN_TIMEOUT_S:
        raise ConfigError(f"timeout_s is {timeout_s:g}", cause="ranks need at least a second to meet")
    if torch_dist.is_initialized():
        raise ConfigError(
            "a process group exists already",
            cause="something called torch.distributed.init_process_group before dt.init",
            mend="remove that call: dt.init makes the group",
        )
    if info.world_size == 1:
        # One process has nobody to talk to: a group would cost a port and threads, and every
        # collective of ours is local then.
        return Started(Control())
    agent_store = os.environ.get(_AGENT_STORE) == "True" and init_method == "env://"
    meeting = parse(init_method, info, agent_store=agent_store, attempt=attempt)
    if isinstance(meeting, FileMeeting) and _formed:
        meeting = FileMeeting(meeting.path.with_name(f"{meeting.path.name}.{_formed}"))
    with bounded_start(timeout_s + 15.0, f"the start of rank {info.rank} of {info.world_size} at {meeting}"):
        deadline = time.monotonic() + timeout_s
        base = _kept.get(meeting) or _open(meeting, info, deadline, timeout_s)
        store = PrefixStore(f"dist-train/{attempt or 0}/{_formed}", base)
        RollCall(store, info.rank, info.world_size, deadline, _taken(meeting)).meet(devices.unique_id(device))
        control = _form(store, info, device, collective_timeout_s or timeout_s)
    _formed += 1
    if isinstance(meeting, FileMeeting):
        return Started(control, meeting)
    _kept[meeting] = base
    return Started(control)


def _open(meeting: Meeting, info: RankInfo, deadline: float, timeout_s: float) -> Store:
    if isinstance(meeting, FileMeeting):
        return file_store.open_store(meeting.path, info.world_size)
    return tcp_store.open_store(meeting, info.rank, info.world_size, deadline, timeout_s)


def _taken(meeting: Meeting) -> _Taken | None:
    if isinstance(meeting, TcpMeeting) and meeting.hosted:
        return None
    return _Taken(meeting)


@dataclass(frozen=True)
class _Taken:
    """Makes the error for a rank whose place is taken."""

    meeting: Meeting

    def __call__(self, cause: str) -> RendezvousError:
        if isinstance(self.meeting, FileMeeting):
            return file_store.stale(self.meeting.path, cause)
        return RendezvousError(
            f"the ranks at {self.meeting} do not fit together", cause=cause, mend="start each rank once"
        )


def _form(store: Store, info: RankInfo, device: torch.device, timeout_s: float) -> Control:
    try:
        return _torch_groups(store, info, device, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RendezvousError(
            f"all {info.world_size} ranks are here, but they cannot form a group",
            cause=str(error).partition("\n")[0],
            mend="a firewall between the nodes, or the wrong interface: see --interface",
        ) from error


def _torch_groups(store: Store, info: RankInfo, device: torch.device, timeout: timedelta) -> Control:
    on_gpu = device.type == "cuda"
    torch_dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
        # Torch refuses a CPU here; with a GPU it opens NCCL now, so that a fault shows at the start.
        device_id=device if on_gpu else None,
    )
    # A group of its own also on CPU: a vote must not stand in one queue with gradients.
    group = torch_dist.new_group(backend="gloo", timeout=timeout)
    logger.debug("rank %d of %d: groups formed on %s", info.rank, info.world_size, device)
    return Control(group, info.rank, info.world_size)
