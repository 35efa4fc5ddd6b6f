"""The run's lease between pods, which replace each other with the same host name and the same pid.

A pod is identified by its uid. An earlier pod of the same job may live on where Kubernetes has lost contact
to its node: it is asked to end, and waited for until it has written no heartbeat for HEARTBEAT_LOST_S.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from dist_train import env
from dist_train.agent import timeouts
from dist_train.agent.records.lease import Lease
from dist_train.agent.settings import Settings
from dist_train.errors import AttemptLost, ConfigError, Preempted
from dist_train.rundir.records import read_json, write_bytes_atomic

_POLL_S = 0.5


class PodLease(Lease):
    """A Lease that identifies its owner by the pod's uid and takes all ages from the file system's clock."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._clock = settings.run.control / f".clock-{settings.instance}"

    def take(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Become the run's owner, once the earlier one has gone or written no heartbeat for too long.

        Raises AttemptLost where an earlier pod of this job does not end, ConfigError where another job's pod
        owns the run, Preempted when `give_up()`.
        """
        deadline = time.monotonic() + timeouts.HOST_DEATH_S
        claimed = False
        try:
            while (owner := self._living_owner()) is not None:
                if not claimed and owner.get("job") == self._settings.job:
                    write_bytes_atomic(
                        self._claim, f"{self._settings.job} {self._settings.instance}\n".encode()
                    )
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
        self._claim.unlink(missing_ok=True)  # this pod's, or that of one that has gone

    def superseded(self) -> str | None:
        """Return the pod that has claimed or taken the run, because this one counted as lost."""
        if not self._held:
            return None
        try:
            job, _, pod = self._claim.read_text().strip().partition(" ")
        except OSError:
            job, pod = "", ""
        if job == self._settings.job and pod not in ("", self._settings.instance):
            return pod
        try:
            owner = self._owner()
        except OSError:
            return None
        return None if owner is None or self._is_mine(owner) else str(owner.get("pod") or owner.get("host"))

    def _living_owner(self) -> dict[str, Any] | None:
        owner = self._owner()
        if owner is None or self._is_mine(owner) or self._silent_s() >= timeouts.HEARTBEAT_LOST_S:
            return None
        return owner

    def _silent_s(self) -> float:
        """Seconds since the owner's last heartbeat, by the file server's clock: no two hosts are compared."""
        try:
            # open() asks the server; stat() may return this node's cached attributes.
            with open(self._run.lease) as lease:
                heartbeat_at = os.fstat(lease.fileno()).st_mtime
        except FileNotFoundError:
            return float("inf")
        self._clock.touch()
        return self._clock.stat().st_mtime - heartbeat_at

    def _still_held(self, owner: dict[str, Any]) -> Exception:
        who = f"pod {owner.get('pod_name') or owner.get('pod') or owner['host']}"
        if owner.get("job") == self._settings.job:
            return AttemptLost(
                f"the run {self._run.path} is still at work for an earlier pod of this job: {who}",
                cause="Kubernetes has lost contact to its node, but its processes live on",
                hint="end that pod's processes on its node; this job tries again by itself",
            )
        return ConfigError(
            f"the run {self._run.path} is at work already for another job, {owner.get('job')}: {who}",
            hint="end that job first, or give this one another --name",
        )

    def _record(self, attempt: int) -> dict[str, object]:
        name = os.environ.get(env.POD_NAME, "")
        return {**super()._record(attempt), "pod": self._settings.instance, "pod_name": name}

    def _owner(self) -> dict[str, Any] | None:
        try:
            return read_json(self._run.lease)
        except OSError:
            time.sleep(_POLL_S)  # NFS: the file was replaced between two calls, and the handle is stale
            return read_json(self._run.lease)

    def _is_mine(self, owner: dict[str, Any]) -> bool:
        return owner.get("pod") == self._settings.instance

    def _is_ours(self) -> bool:
        try:
            owner = self._owner()
        except OSError:
            return False
        return owner is None or self._is_mine(owner)
