"""Kubernetes: one agent per pod; the launcher does not see the run directory, and pods replace each other."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping

from dist_train import env
from dist_train.agent import timeouts
from dist_train.agent.coordination import address
from dist_train.agent.coordination.address import Address
from dist_train.agent.coordination.messages import Verdict
from dist_train.agent.platform import pod_submissions
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.platform.manual_submission import write_job_record
from dist_train.agent.platform.pod_lease import PodLease
from dist_train.agent.platform.pod_run_dir import prepare_run_dir
from dist_train.agent.platform.termination_message import preemption_reason, write_termination_message
from dist_train.agent.records.lease import Lease
from dist_train.agent.settings import Settings
from dist_train.agent.workers import reaper
from dist_train.agent.workers.rank import UNREAPED
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure
from dist_train.rundir.records import read_json


class KubernetesPlatform(Platform):
    """Agents that are pods of an Indexed Job, a JobSet, a TrainJob or a Volcano job."""

    replaces_nodes = True
    stale_address_s = timeouts.STALE_ADDRESS_S
    connect_retry_s = 0.5  # each try asks the cluster's DNS
    superseded_code = ExitCode.ATTEMPT_LOST
    memory_option = "--mem"

    def default_address(self, environ: Mapping[str, str]) -> Address:
        """The pod's own IP address: the cluster's DNS may not know its name yet."""
        own = address.of_this_host()
        pod_ip = address.external_address(own.host)
        return Address(pod_ip, None, f"the pod's own address; its name is {own.host}") if pod_ip else own

    def instance(self, environ: Mapping[str, str]) -> str:
        """The pod's uid: host name and pid are the same in each pod that replaces another."""
        return environ.get(env.POD_UID) or uuid.uuid4().hex

    def submission(self, environ: Mapping[str, str]) -> str:
        """The uid of the submitted object; not known of every kind."""
        return environ.get(env.SUBMISSION, "")

    def prepare(self, settings: Settings, join_by: float, note: Callable[[str], None]) -> None:
        """Reap orphans as process 1; create the run directory or wait for it."""
        reaper.start(lambda: UNREAPED)
        prepare_run_dir(settings, join_by, note)

    def earlier_exit(self, settings: Settings) -> AgentExit | None:
        """A pod may be started after its submission's verdict: it repeats that and exits."""
        return pod_submissions.earlier_exit(settings)

    def lease(self, settings: Settings) -> Lease:
        """A lease that knows its owner by the pod's uid."""
        return PodLease(settings)

    def record_submission(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        """The launcher sees no run directory: agent 0 writes what it knows, and each submission."""
        pod_submissions.record(settings)
        if read_json(settings.run.job) is None:
            write_job_record(settings, pod_submissions.handle(settings))

    def store_host(self, settings: Settings) -> str:
        """The pod's IP address where it has one: the DNS may not know this pod's name yet."""
        own = settings.address.host
        return own if address.is_address(own) else super().store_host(settings)

    def run_reference(self, settings: Settings) -> str:
        """The run's name: where the pod's record is read, the run lies in another directory."""
        return settings.run.path.name

    def exit_of(self, settings: Settings, verdict: Verdict, attempt: int | None) -> AgentExit:
        """All that the termination message holds; Kubernetes decides by the exit code of the process."""
        why = verdict.why
        if verdict.exit_code == ExitCode.PREEMPTED:
            why = preemption_reason(settings, attempt, why)
        failure = None if verdict.failure is None else Failure.from_record(dict(verdict.failure))
        process_code = self.scheduler_code(verdict.exit_code, failure)
        return AgentExit(verdict.exit_code, why, failure, attempt, process_code)

    def report_startup_error(self, settings: Settings, code: int, why: str) -> None:
        """Nothing: the launcher reads the termination message, and the volume may be what is wrong."""

    def report_exit(self, end: AgentExit, settings: Settings | None, environ: Mapping[str, str]) -> None:
        """Write the termination message."""
        write_termination_message(end, settings, environ)
