"""Slurm: one agent per task of a job step, its environment, and jobs that were submitted by hand."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from dist_train.agent.coordination import address
from dist_train.agent.coordination.address import Address
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.platform.manual_submission import write_job_record
from dist_train.agent.settings import Settings
from dist_train.rundir.events import append_event
from dist_train.rundir.records import read_json

_NODE_NAME = "SLURMD_NODENAME"


class SlurmPlatform(Platform):
    """Agents that srun started."""

    signals_every_process = True
    memory_option = "--mem"

    def job(self, environ: Mapping[str, str]) -> str:
        """`4711.1`: the job and its restart count, as the batch script computes it too."""
        if "SLURM_JOB_ID" in environ:
            return f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_RESTART_COUNT', '0')}"
        return super().job(environ)

    def host(self, environ: Mapping[str, str]) -> str:
        """The NodeName, which need not be the machine's own name."""
        return environ.get(_NODE_NAME) or socket.gethostname()

    def default_address(self, environ: Mapping[str, str]) -> Address:
        """The NodeName where it resolves."""
        name = environ.get(_NODE_NAME, "")
        if not name:
            return address.of_this_host()
        if address.resolves(name):
            return Address(name, None, f"{_NODE_NAME}={name}")
        return address.of_this_host(f"{_NODE_NAME}={name} does not resolve here, so ")

    def record_submission(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        """Write job.json and the `submitted` event of a job submitted by hand with sbatch."""
        job_id = environ.get("SLURM_JOB_ID", "")
        if not job_id:
            return
        handle = f"slurm:{job_id}"
        record = read_json(settings.run.job)
        if record is not None and (not record.get("by_hand") or record.get("handle") == handle):
            return
        append_event(
            settings.run,
            "submitted",
            launcher=settings.launcher,
            handle=handle,
            host=socket.gethostname(),
            noted_by="agent",
        )
        write_job_record(settings, handle)
