"""What the system allows this process: ulimits, cgroup limits, /dev/shm."""

from __future__ import annotations

import os
import resource

from dist_train.doctor.facts import UNLIMITED, Amount, LimitFacts
from dist_train.jobs.machine import Usable, look


def read_limits() -> LimitFacts:
    """Ask the kernel; the limits are those of a rank, since this is one."""
    machine = look()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LimitFacts(
        nofile=_known(soft),
        nofile_hard=_known(hard),
        memlock=_known(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        nproc=_known(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        cores=_amount(machine.cores),
        memory=_amount(machine.memory),
        shm_total=machine.shared_memory,
        shm_free=_free("/dev/shm"),
    )


def _known(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _amount(usable: Usable) -> Amount:
    return Amount(amount=usable.amount, machine=usable.machine, reason=usable.reason)


def _free(path: str) -> int | None:
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_frsize * facts.f_bavail
