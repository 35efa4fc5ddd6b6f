"""One owner per run: agent 0 holds the lease; a later start of the same job may take it over."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable

from dist_train.agent import bounds
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError
from dist_train.jobs.owner import owner_lives
from dist_train.rundir.records import read_json, write_bytes_atomic, write_json_atomic

logger = logging.getLogger(__name__)
_POLL_S = 0.25
CLAIM = "superseded"


class Lease:
    """`lease` in the run directory, and `control/superseded`, by which a later start claims it."""

    def __init__(self, told: Settings) -> None:
        self._told = told
        self._run = told.run
        self._claim = told.run.control / CLAIM
        self._held = False

    def take(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Make the run ours; raises ConfigError where another agent is at work on it.

        `give_up` is asked while an earlier start is waited for, where that may take long.

        A scheduler that has lost a node's daemon starts the job elsewhere while the old processes may
        live on: the old owner is told, and has as long as a silent host has to go.
        """
        lease = read_json(self._run.lease)
        if lease is not None and owner_lives(self._run, lease):
            if not _is_later_start(self._told.job, str(lease.get("job"))):
                raise ConfigError(
                    f"the run {self._run.path} is at work already: "
                    f"agent of pid {lease['pid']} on {lease['host']}",
                    mend=f"dist-train cancel {self._run.path}",
                )
            self._supersede(lease)
        self._held = True
        self.beat(0)

    def _supersede(self, lease: dict[str, object]) -> None:
        write_bytes_atomic(self._claim, f"{self._told.job}\n".encode())
        deadline = time.monotonic() + bounds.HOST_DEATH_S
        while owner_lives(self._run, lease) and self._run.lease.exists():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the run {self._run.path} is still at work for the job's earlier start: "
                    f"agent of pid {lease['pid']} on {lease['host']}",
                    cause="its node was lost to the scheduler, but its processes live on",
                    mend=f"end that process, then dist-train resume {self._run.path}",
                )
            time.sleep(_POLL_S)

    def superseded(self) -> str | None:
        """The later start of this job that wants the run, if there is one."""
        try:
            by = self._claim.read_text().strip()
        except OSError:
            return None
        return by if _is_later_start(by, self._told.job) else None

    def beat(self, attempt: int) -> None:
        """Say that we live; not over somebody else's lease."""
        if self._held and self._is_ours():
            self._write(attempt)

    def _write(self, attempt: int) -> None:
        try:
            write_json_atomic(self._run.lease, self._record(attempt))
        except OSError as error:
            logger.warning("the lease could not be written: %s", error)

    def give_back(self) -> None:
        """Let the next one have it."""
        if self._held and self._is_ours():
            self._run.lease.unlink(missing_ok=True)
        self._held = False

    def _record(self, attempt: int) -> dict[str, object]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": self._told.job,
            "attempt": attempt,
        }

    def _is_ours(self) -> bool:
        lease = read_json(self._run.lease)
        return lease is None or not _is_later_start(str(lease.get("job")), self._told.job)


def _is_later_start(job: str, than: str) -> bool:
    """`4711.1` is a later start of the job `4711.0`."""
    number, _, restart = job.rpartition(".")
    other, _, earlier = than.rpartition(".")
    same = number == other and number != "" and restart.isdigit() and earlier.isdigit()
    return same and int(restart) > int(earlier)
