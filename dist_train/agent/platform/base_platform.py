"""The interface of a platform: everything about a cluster that the agent depends on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from dist_train import env
from dist_train.agent.coordination import address, endpoint
from dist_train.agent.coordination.address import Address
from dist_train.agent.coordination.messages import Verdict
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.records.lease import Lease
from dist_train.agent.records.verdict_file import code_for_scheduler, write_verdict
from dist_train.agent.settings import Settings
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure

# The launcher's variable first, else that of the scheduler: Slurm, an Indexed Job, a Volcano job's task.
NODE_RANK_VARIABLES = (env.NODE_RANK, "SLURM_NODEID", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")
# Copied into the run's events, from whichever scheduler set them.
_SCHEDULER_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_NODEID",
    "SLURMD_NODENAME",
    "JOB_COMPLETION_INDEX",
    "VC_TASK_INDEX",
    env.POD_NAME,
    env.POD_NODE,
    env.POD_UID,
)


class Platform:
    """What differs between clusters; the defaults suit a cluster of which nothing is known.

    Attributes:
        replaces_nodes: the cluster starts another agent in the place of one that has gone, while the others
            live on: one that leaves before an attempt begins is waited for.
        stale_address_s: how long node 0's name may still lead to an earlier agent's address.
        connect_retry_s: pause between two tries to reach node 0.
        superseded_code: the run's exit code where a later start of the job has taken the run over.
        signals_every_process: the scheduler sends its signals to ranks and to their children too, not to the
            agent alone.
        nodes_share_a_machine: all nodes are simulated on one machine, whose cores they divide.
        memory_option: the launcher's option for more memory per node; empty where it has none.
        prints_failure: node 0 prints the report of a failure; else the launcher does.
    """

    replaces_nodes = False
    stale_address_s = 0.0
    connect_retry_s = endpoint.RETRY_S
    superseded_code = ExitCode.UNAVAILABLE
    prints_failure = True
    memory_option = ""
    signals_every_process = False
    nodes_share_a_machine = False

    def job(self, environ: Mapping[str, str]) -> str:
        """Name this start of the job: one verdict file belongs to each."""
        return environ.get(env.JOB, "job.0")

    def host(self, environ: Mapping[str, str]) -> str:
        """Return what the cluster calls this node."""
        return socket.gethostname()

    def address(self, environ: Mapping[str, str]) -> Address:
        """Choose the address by which other nodes reach this one; ConfigError for an unknown --interface."""
        interface = environ.get(env.INTERFACE)
        return address.of_interface(interface) if interface else self.default_address(environ)

    def default_address(self, environ: Mapping[str, str]) -> Address:
        """Choose it where no --interface was given."""
        return address.of_this_host()

    def instance(self, environ: Mapping[str, str]) -> str:
        """Return the agent's unique id, where host name and pid are not unique."""
        return ""

    def submission(self, environ: Mapping[str, str]) -> str:
        """Return the unique id of the submitted object, where it is known."""
        return ""

    def scheduler_facts(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the scheduler's variables about this node, for the run's events."""
        return {name: environ[name] for name in _SCHEDULER_VARIABLES if name in environ}

    def prepare(self, settings: Settings, join_by: float, note: Callable[[str], None]) -> None:
        """Make ready what a launcher has not: nothing where it sees the run directory."""

    def earlier_exit(self, settings: Settings) -> AgentExit | None:
        """Return how this submission has ended already; None while it goes on, and where it is unknown."""
        return None

    def lease(self, settings: Settings) -> Lease:
        """Return the lease by which agent 0 owns the run."""
        return Lease(settings)

    def record_submission(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        """Node 0: write what a launcher would have written of this submission, where none has."""

    def store_host(self, settings: Settings) -> str:
        """Return the host name or address by which ranks reach node 0's store."""
        return settings.endpoint.host or settings.address.host

    def run_reference(self, settings: Settings) -> str:
        """Return the run as commands in hints name it."""
        return str(settings.run.path)

    def scheduler_code(self, code: int, failure: Failure | None) -> int:
        """Return the exit code that the scheduler gets for the run's."""
        return code_for_scheduler(code, failure)

    def exit_of(self, settings: Settings, verdict: Verdict, attempt: int | None) -> AgentExit:
        """Build this agent's exit from the verdict; the scheduler's script reads the verdict file."""
        return AgentExit(verdict.exit_code, verdict.why)

    def report_startup_error(self, settings: Settings, code: int, why: str) -> None:
        """Write the verdict of a node 0 that ends before any attempt: else its launcher takes it for lost."""
        write_verdict(settings, code, why)

    def report_exit(self, end: AgentExit, settings: Settings | None, environ: Mapping[str, str]) -> None:
        """Report the end to the cluster, as the last action; `settings` is None if they were wrong."""
