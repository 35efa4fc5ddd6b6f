"""One owner per run: agent 0 holds the lease; a later start of the same job may take it over."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable

from dist_train.agent import timeouts
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError
from dist_train.jobs.process_identity import started_at
from dist_train.jobs.run_state import owner_lives
from dist_train.rundir.records import read_json, write_bytes_atomic, write_json_atomic
from dist_train.rundir.this_machine import this_machine

logger = logging.getLogger(__name__)
_POLL_S = 0.25
CLAIM = "superseded"


class Lease:
    """The file `lease`, and `control/superseded`, by which a later start of the job claims the run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._run = settings.run
        self._claim = settings.run.control / CLAIM
        self._held = False

    def take(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Become the run's owner; raises ConfigError where another job's agent owns it.

        A scheduler that has lost a node's daemon starts the job elsewhere while the old processes may
        live on: the old owner is asked to end, and has HOST_DEATH_S for it.

        Args:
            give_up: polled while an earlier start is waited for, where that may take long.
        """
        lease = read_json(self._run.lease)
        if lease is not None and owner_lives(self._run, lease) is not False:
            if not _is_later_start(self._settings.job, str(lease.get("job"))):
                raise ConfigError(
                    f"the run {self._run.path} is at work already: "
                    f"agent of pid {lease['pid']} on {lease['host']}",
                    hint=f"dist-train cancel {self._run.path}",
                )
            self._supersede(lease)
        self._held = True
        self.beat(0)

    def _supersede(self, lease: dict[str, object]) -> None:
        write_bytes_atomic(self._claim, f"{self._settings.job}\n".encode())
        deadline = time.monotonic() + timeouts.HOST_DEATH_S
        while owner_lives(self._run, lease) is not False and self._run.lease.exists():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the run {self._run.path} is still at work for the job's earlier start: "
                    f"agent of pid {lease['pid']} on {lease['host']}",
                    cause="its node was lost to the scheduler, but its processes live on",
                    hint=f"end that process, then dist-train resume {self._run.path}",
                )
            time.sleep(_POLL_S)

    def superseded(self) -> str | None:
        """Return the later start of this job that has claimed the run, if there is one."""
        try:
            by = self._claim.read_text().strip()
        except OSError:
            return None
        return by if _is_later_start(by, self._settings.job) else None

    def beat(self, attempt: int) -> None:
        """Write a heartbeat, unless the lease is another agent's by now."""
        if self._held and self._is_ours():
            self._write(attempt)

    def _write(self, attempt: int) -> None:
        try:
            write_json_atomic(self._run.lease, self._record(attempt))
        except OSError as error:
            logger.warning("the lease could not be written: %s", error)

    def release(self) -> None:
        """Release the lease."""
        if self._held and self._is_ours():
            self._run.lease.unlink(missing_ok=True)
        self._held = False

    def _record(self, attempt: int) -> dict[str, object]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": this_machine(),
            "started": started_at(os.getpid()),
            "job": self._settings.job,
            "attempt": attempt,
        }

    def _is_ours(self) -> bool:
        lease = read_json(self._run.lease)
        return lease is None or not _is_later_start(str(lease.get("job")), self._settings.job)


def _is_later_start(job: str, than: str) -> bool:
    """Whether `job` is a later start than another: `4711.1` is one of the job `4711.0`."""
    number, _, restart = job.rpartition(".")
    other, _, earlier = than.rpartition(".")
    same = number == other and number != "" and restart.isdigit() and earlier.isdigit()
    return same and int(restart) > int(earlier)
