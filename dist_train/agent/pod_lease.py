"""The lease among pods: each takes the place of an earlier one, with the same host name and the same pid.

A pod is known by its uid. An earlier pod of the same job may live on where Kubernetes has lost sight of
its node: it is told to go, and waited for until it has been silent for as long as a dead host is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from dist_train import env
from dist_train.agent import bounds
from dist_train.agent.lease import Lease
from dist_train.agent.settings import Settings
from dist_train.errors import AttemptLost, ConfigError, Preempted
from dist_train.rundir.records import read_json, write_bytes_atomic

_POLL_S = 0.5


class PodLease(Lease):
    """As Lease, with the pod's uid for identity and the file system's clock for all ages."""

    def __init__(self, told: Settings) -> None:
        super().__init__(told)
        self._clock = told.run.control / f".clock-{told.pod}"

    def take(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Make the run ours, once its earlier owner has gone or fallen silent.

        Raises AttemptLost where an earlier pod of this job does not go, ConfigError where another job
        is at work on the run, Preempted when `give_up()`.
        """
        deadline = time.monotonic() + bounds.HOST_DEATH_S
        claimed = False
        try:
            while (owner := self._living_owner()) is not None:
                if not claimed and owner.get("job") == self._told.job:
                    write_bytes_atomic(self._claim, f"{self._told.job} {self._told.pod}\n".encode())
                    claimed = True
                if give_up():
                    raise Preempted("stopped before this pod had the run's lease")
                if time.monotonic() > deadline:
                    raise self._still_held(owner)
                time.sleep(_POLL_S)
        finally:
            self._clock.unlink(missing_ok=True)
        self._held = True
        self._write(0)
        self._claim.unlink(missing_ok=True)  # ours, or of a pod that has come and gone

    def superseded(self) -> str | None:
        """The pod that has claimed the run, or has it already, because this one was taken for lost."""
        if not self._held:
            return None
        try:
            job, _, pod = self._claim.read_text().strip().partition(" ")
        except OSError:
            job, pod = "", ""
        if job == self._told.job and pod not in ("", self._told.pod):
            return pod
        try:
            owner = self._owner()
        except OSError:
            return None
        return None if owner is None or self._is_mine(owner) else str(owner.get("pod") or owner.get("host"))

    def _living_owner(self) -> dict[str, Any] | None:
        owner = self._owner()
        if owner is None or self._is_mine(owner) or self._silent_s() >= bounds.HEARTBEAT_LOST_S:
            return None
        return owner

    def _silent_s(self) -> float:
        """Since the owner's last heartbeat, by the clock that stamps both: no two hosts are compared."""
        try:
            # To open asks the server; what stat() says may be an old copy of this node's.
            with open(self._run.lease) as lease:
                beaten_at = os.fstat(lease.fileno()).st_mtime
        except FileNotFoundError:
            return float("inf")
        self._clock.touch()
        return self._clock.stat().st_mtime - beaten_at

    def _still_held(self, owner: dict[str, Any]) -> Exception:
        who = f"pod {owner.get('pod_name') or owner.get('pod') or owner['host']}"
        if owner.get("job") == self._told.job:
            return AttemptLost(
                f"the run {self._run.path} is still at work for an earlier pod of this job: {who}",
                cause="Kubernetes has lost sight of its node, but its processes live on",
                mend="end that pod's processes on its node; this job tries again by itself",
            )
        return ConfigError(
            f"the run {self._run.path} is at work already for another job, {owner.get('job')}: {who}",
            mend="end that job first, or give this one another --name",
        )

    def _record(self, attempt: int) -> dict[str, object]:
        name = os.environ.get(env.POD_NAME, "")
        return {**super()._record(attempt), "pod": self._told.pod, "pod_name": name}

    def _owner(self) -> dict[str, Any] | None:
        try:
            return read_json(self._run.lease)
        except OSError:
            time.sleep(_POLL_S)  # NFS: it was replaced between two calls, and the handle is stale
            return read_json(self._run.lease)

    def _is_mine(self, owner: dict[str, Any]) -> bool:
        return owner.get("pod") == self._told.pod

    def _is_ours(self) -> bool:
        try:
            owner = self._owner()
        except OSError:
            return False
        return owner is None or self._is_mine(owner)


def lease_of(told: Settings) -> Lease:
    """The lease that suits the launcher."""
    return PodLease(told) if told.in_pod else Lease(told)
