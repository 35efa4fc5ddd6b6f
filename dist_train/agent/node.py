"""Run one node: coordinator server (node 0), client, attempts, exit."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING

from dist_train.agent import timeouts
from dist_train.agent.coordination.address import own_loopback
from dist_train.agent.coordination.coordinator import CANCEL, INTERRUPT
from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import Identity
from dist_train.agent.coordination.messages import Bye, Join, StacksAsked, Start, StopAsked, Verdict, Waiting
from dist_train.agent.node_zero import NodeZero
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.records.fingerprint import fingerprint
from dist_train.agent.records.run_dir_nonce import read_nonce
from dist_train.agent.settings import Settings
from dist_train.agent.workers.graceful_stop import GracefulStop, wait_for_signals
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.agent.workers.start_method import StartMethod
from dist_train.errors import ConfigError, DistTrainError, ExitCode, Preempted
from dist_train.jobs.frozen_imports import frozen_imports
from dist_train.rundir.attempt_lines import begin_line, restart_line
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.events import attempts_of_submission
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.outcome_text import render_failure

if TYPE_CHECKING:
    from dist_train.agent.workers.elastic_agent import NodeAgent

logger = logging.getLogger(__name__)


class _EndedEarlier(Exception):
    """The submission has ended without this agent."""

    def __init__(self, end: AgentExit) -> None:
        super().__init__(end.why)
        self.end = end


class Node:
    """One node of the job.

    Args:
        output: shows what the ranks and this agent print.
        join_by: time.monotonic() at which an agent that was started in another's place gives up.
    """

    def __init__(
        self,
        settings: Settings,
        platform: Platform,
        output: RankOutput,
        join_by: float,
        start_method: StartMethod,
    ) -> None:
        self._settings = settings
        self._platform = platform
        self._join_by = join_by
        self._attempt: int | None = None
        self._output = output
        self._start_method = start_method
        self._graceful_stop = GracefulStop(
            settings.grace_s,
            reads_the_flag=settings.kind == "config",
            step_signals=platform.signals_every_process,
        )
        self._stop_reason: str | None = None
        self._identity = Identity(settings.run_id, _run_key(settings))
        self._client: CoordinatorClient | None = None
        self._reached = ""  # the numeric address at which node 0 was reached
        self._node_zero: NodeZero | None = None
        self._agent: NodeAgent | None = None
        self._earlier_exit: AgentExit | None = None
        self._check_submission_at = 0.0
        wait_for_signals(self._on_signal, self._graceful_stop.sigterm_came)

    def run(self) -> AgentExit:
        """Run attempts until the verdict; return how this agent ends."""
        settings = self._settings
        # Before this agent owns the run, listens or connects: a slow file system can hold the interpreter in
        # these imports for minutes (dlopen keeps its lock), and the heartbeats that others wait for with it.
        with frozen_imports():
            import psutil  # noqa: F401 -- these two are used later, where the command line must not wait for them
            import xxhash  # noqa: F401

            from dist_train.agent.coordination.rendezvous import AttemptOver, NodeRendezvous
            from dist_train.agent.workers.elastic_agent import NodeAgent, run_agent
        try:
            if settings.node == 0:
                self._node_zero = NodeZero(
                    settings,
                    self._platform,
                    self._identity,
                    self._output.note,
                    lambda: self._stop_reason is not None,
                    lambda: self._on_signal(CANCEL),
                )

            def begin(start: Start) -> None:
                self._attempt = start.attempt
                agent.begin(start, self._identity.mac("store", start.attempt))
                self._note_attempt(start.attempt, agent.last_verdict)

            while True:
                try:
                    client = self._connect()
                except _EndedEarlier as earlier:
                    return earlier.end
                rendezvous = NodeRendezvous(
                    client, settings.run_id, settings.node, settings.nodes, self._join, begin
                )
                agent = NodeAgent(
                    settings, client, self._output, self._graceful_stop, rendezvous, self._start_method
                )
                self._agent = agent
                try:
                    run_agent(agent, self._is_over)
                except AttemptOver:
                    pass
                if not self._awaits_next_node_zero(client):
                    return self._leave(client)
                self._output.note(
                    f"node 0 has gone before an attempt began ({_why_gone(client)}): waiting for the next"
                )
                client.close()
        finally:
            if self._node_zero is not None:
                self._node_zero.close()

    def _note_attempt(self, attempt: int, before: Verdict | None) -> None:
        """Print what this attempt continues: node 0 for all, and each pod, whose log holds some attempts."""
        if not attempt or not (self._settings.node == 0 or self._platform.replaces_nodes):
            return
        step = newest_step(self._settings.run)
        if before is None or before.failure is None:
            self._output.note(begin_line(attempt, step, attempts_of_submission(self._settings.run)))
            return
        self._output.note(restart_line(attempt, step, Failure.from_record(dict(before.failure)), before.why))

    def _connect(self) -> CoordinatorClient:
        settings, platform = self._settings, self._platform
        endpoint = settings.endpoint
        if self._node_zero is not None:
            endpoint = Endpoint(self._node_zero.loopback, self._node_zero.port)
        deadline = self._join_by if platform.replaces_nodes else time.monotonic() + settings.join_s
        try:
            connection = connect(
                endpoint,
                self._identity,
                settings.node,
                deadline,
                self._output.note,
                self._gives_up,
                0.0 if self._node_zero else platform.stale_address_s,
                platform.connect_retry_s,
            )
        except DistTrainError:
            if self._earlier_exit is not None:
                raise _EndedEarlier(self._earlier_exit) from None
            if platform.replaces_nodes and self._stop_reason is not None:
                raise Preempted(f"node {settings.node} was stopped before it had reached node 0") from None
            raise
        self._reached = connection.peer_address
        self._client = CoordinatorClient(
            connection, self._on_stop_from_node_0, self._on_waiting, self._on_stacks
        )
        if self._stop_reason is not None:
            self._client.send(StopAsked(settings.node, self._stop_reason))
        return self._client

    def _gives_up(self) -> bool:
        """Whether to stop trying to reach node 0: a stop was asked for, or the submission has ended."""
        now = time.monotonic()
        if now >= self._check_submission_at:
            self._check_submission_at = now + timeouts.MEMBERSHIP_CHECK_S
            self._earlier_exit = self._platform.earlier_exit(self._settings)
        return self._stop_reason is not None or self._earlier_exit is not None

    def _join(self) -> Join:
        settings = self._settings
        return Join(
            settings.node,
            settings.host,
            os.getpid(),
            settings.procs,
            read_nonce(settings),
            fingerprint(settings),
            socket.gethostname(),
            "" if self._interface_is_set() else own_loopback(),
            self._platform.scheduler_facts(os.environ),
            "/".join(settings.rank_cpus),
            settings.cannot_start,
            self._reached,
        )

    def _interface_is_set(self) -> bool:
        """Whether gloo gets its interface, so that it does not resolve the machine's own name."""
        return self._settings.address.interface is not None or "GLOO_SOCKET_IFNAME" in os.environ

    def _is_over(self) -> bool:
        client = self._client
        return client is None or client.lost is not None or client.is_over

    def _awaits_next_node_zero(self, client: CoordinatorClient) -> bool:
        """Whether to wait for a new node 0: this one was an earlier start's, or stopped before an attempt."""
        verdict = client.verdict
        gone = verdict is None or verdict.exit_code in (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
        waits = self._platform.replaces_nodes and self._settings.node != 0
        return waits and gone and self._attempt is None and self._stop_reason is None

    def _leave(self, client: CoordinatorClient) -> AgentExit:
        verdict = client.verdict if client.is_over else None  # after a restart's, node 0 has gone
        if verdict is None:
            logger.info("no verdict: %s", client.lost)
            self._output.note(f"node {self._settings.node} leaves: {client.lost}")
            return AgentExit(int(ExitCode.ATTEMPT_LOST), client.lost or "no verdict", attempt=self._attempt)
        client.send(Bye(self._settings.node))
        if self._node_zero is not None:
            self._node_zero.wait_until_over(timeouts.PROCESS_DEATH_S)
        client.close()
        if self._settings.node == 0:
            self._print_verdict(verdict)
        return self._platform.exit_of(self._settings, verdict, self._attempt)

    def _print_verdict(self, verdict: Verdict) -> None:
        if verdict.failure is None:
            if verdict.exit_code not in (0, ExitCode.PREEMPTED):
                self._output.note(verdict.why)
        elif self._platform.prints_failure:
            failure = read_failure(self._settings.run) or Failure.from_record(dict(verdict.failure))
            self._output.report(render_failure(failure, verdict.exit_code))

    def _on_signal(self, reason: str) -> None:
        if self._settings.run.interrupted(self._settings.job).exists():
            reason = INTERRUPT
        self._on_stop_from_node_0(reason)
        if self._client is not None:
            self._client.send(StopAsked(self._settings.node, reason))

    def _on_stop_from_node_0(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        self._graceful_stop.ask()

    def _on_stacks(self, asked: StacksAsked) -> None:
        if self._agent is not None:
            self._agent.answer_stacks(asked)

    def _on_waiting(self, waiting: Waiting) -> None:
        text = f"waiting for {waiting.missing} since {waiting.waited_s:.0f} s; here: {waiting.here}"
        logger.info(text)
        if self._settings.node == 0:
            self._output.note(text)


def _run_key(settings: Settings) -> bytes:
    """Read the run key: the launcher wrote it (0600) before it started any agent, or gave it as a secret."""
    if settings.run_key:
        return hashlib.sha256(f"{settings.run_id}/{settings.run_key}".encode()).digest()
    path = settings.run.control / "key"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the run key {path} cannot be read: {error.strerror}",
            cause="the run directory is not shared by this node, or it belongs to another user",
        ) from error


def _why_gone(client: CoordinatorClient) -> str:
    return client.lost or (client.verdict.why if client.verdict is not None else "no verdict")
