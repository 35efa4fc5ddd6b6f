"""One node's part of the job: node 0's ears, the link, the attempts, the verdict."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path

from dist_train.agent import bounds, by_hand, settings, submissions
from dist_train.agent.address import is_address, own_loopback
from dist_train.agent.console import Console
from dist_train.agent.coordinator import CANCEL, Coordinator, Send, Timing
from dist_train.agent.endpoint import RETRY_S, Endpoint, connect
from dist_train.agent.fingerprint import fingerprint
from dist_train.agent.hello import Identity
from dist_train.agent.link import Link
from dist_train.agent.messages import Bye, Join, Start, StopAsked, Verdict, Waiting
from dist_train.agent.recorder import RunRecorder, code_for_scheduler
from dist_train.agent.server import Server
from dist_train.agent.settings import Settings
from dist_train.agent.stopping import Stopping, wait_for_signals
from dist_train.agent.termination import End, why_preempted
from dist_train.errors import ConfigError, DistTrainError, ExitCode, Preempted
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.records import write_bytes_atomic
from dist_train.rundir.report import render_failure

logger = logging.getLogger(__name__)
CANCEL_FILE = "cancel"
_NONCE_TRIES_S = 10.0
_POD_RETRY_S = 0.5  # each try asks the cluster's DNS


class _Over(Exception):
    """The run has come to its end without this pod."""

    def __init__(self, end: End) -> None:
        super().__init__(end.why)
        self.end = end


class Node:
    """One node's part of the job."""

    def __init__(self, told: Settings, join_by: float) -> None:
        self._told = told
        self._join_by = join_by
        self._attempt: int | None = None
        self._console = Console(told.host, told.show_ranks)
        self._stopping = Stopping(told.grace_s, reads_the_flag=told.kind == "config")
        self._asked: str | None = None
        self._me = Identity(told.run_id, _run_key(told))
        self._link: Link | None = None
        self._recorder: RunRecorder | None = None
        self._server: Server | None = None
        self._store: object | None = None
        self._over: End | None = None
        self._look_again_at = 0.0
        wait_for_signals(self._on_signal)

    def run(self) -> End:
        """Attempts until the verdict; returns how every agent leaves."""
        try:
            if self._told.node == 0:
                self._open_ears()
            # torch is imported while the other nodes find us.
            from dist_train.agent.elastic import NodeAgent, run_agent
            from dist_train.agent.rendezvous import AttemptOver, NodeRendezvous

            def begin(start: Start) -> None:
                self._attempt = start.attempt
                agent.begin(start)

            told = self._told
            while True:
                try:
                    link = self._connect()
                except _Over as over:
                    return over.end
                rendezvous = NodeRendezvous(link, told.run_id, told.node, told.nodes, self._join, begin)
                agent = NodeAgent(told, link, self._console, self._stopping, rendezvous)
                try:
                    run_agent(agent, self._is_over)
                except AttemptOver:
                    pass
                if not self._awaits_next_node_0(link):
                    return self._leave(link)
                self._console.note(
                    f"node 0 has gone before an attempt began ({_gone(link)}): waiting for the next"
                )
                link.close()
        finally:
            if self._server is not None:
                self._server.close()
            if self._recorder is not None:
                self._recorder.close()

    def _open_ears(self) -> None:
        told = self._told
        recorder = RunRecorder(told)
        recorder.start(lambda: self._asked is not None)
        self._recorder = recorder
        by_hand.describe(told)
        nonce = secrets.token_hex(8)
        write_bytes_atomic(self._nonce_file(), nonce.encode())
        timing = Timing(join_s=told.join_s)
        coordinator = Coordinator(
            told.nodes, nonce, recorder, self._open_store, time.monotonic, timing, replaced=told.in_pod
        )
        logger.info("the other nodes are told %s (%s)", told.address.host, told.address.why)
        listener = told.endpoint.listen(told.address.host)
        self._port = listener.getsockname()[1]
        self._server = Server(
            listener, self._me, coordinator, lambda error: self._give_up(coordinator, recorder, error)
        )
        self._server.start()
        threading.Thread(
            target=self._watch_orders, args=(recorder,), name="agent-orders", daemon=True
        ).start()

    def _give_up(self, coordinator: Coordinator, recorder: RunRecorder, error: BaseException) -> list[Send]:
        """Node 0 cannot go on (a full disk, changed code): end the run on all nodes with the reason."""
        told = error if isinstance(error, DistTrainError) else None
        code = told.exit_code if told else ExitCode.INTERNAL
        sends = coordinator.fault(str(told) if told else f"node 0 failed: {error!r}", code)
        verdict = coordinator.verdict
        try:
            if verdict is not None and verdict.failure is not None:
                recorder.ended(verdict, Failure.from_record(dict(verdict.failure)))
        except OSError:
            self._console.note(verdict.why if verdict else repr(error))
        return sends

    def _open_store(self) -> tuple[str, int]:
        """A fresh store for the ranks of each attempt: torch adds no attempt prefix to their keys."""
        from datetime import timedelta

        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch lists it in no __all__

        host = self._told.endpoint.host or self._told.address.host
        if self._told.in_pod and is_address(self._told.address.host):
            host = self._told.address.host  # the DNS may not know this pod's name yet
        timeout = timedelta(seconds=bounds.STORE_CALL_S)
        store = TCPStore(host, 0, None, True, timeout, wait_for_workers=False)
        self._store = store
        return host, store.port

    def _connect(self) -> Link:
        endpoint = self._told.endpoint
        if self._told.node == 0:
            endpoint = Endpoint("127.0.0.1", self._port)
        in_pod = self._told.in_pod
        deadline = self._join_by if in_pod else time.monotonic() + self._told.join_s
        patience_s = bounds.STALE_ADDRESS_S if in_pod and self._told.node != 0 else 0.0
        try:
            connection, reader = connect(
                endpoint,
                self._me,
                self._told.node,
                deadline,
                self._console.note,
                self._gives_up,
                patience_s,
                _POD_RETRY_S if patience_s else RETRY_S,
            )
        except DistTrainError:
            if self._over is not None:
                raise _Over(self._over) from None
            if in_pod and self._asked is not None:
                raise Preempted(f"node {self._told.node} was stopped before it had reached node 0") from None
            raise
        self._link = Link(connection, reader, self._on_stop_from_node_0, self._on_waiting)
        if self._asked is not None:
            self._link.send(StopAsked(self._told.node, self._asked))
        return self._link

    def _gives_up(self) -> bool:
        """Whether to stop trying to reach node 0: a stop was asked for, or there is nothing left to do."""
        now = time.monotonic()
        if self._told.in_pod and now >= self._look_again_at:
            self._look_again_at = now + bounds.ROLL_CALL_S
            self._over = submissions.ended(self._told)
        return self._asked is not None or self._over is not None

    def _join(self) -> Join:
        return Join(
            self._told.node,
            self._told.host,
            os.getpid(),
            self._told.procs,
            self._read_nonce(),
            fingerprint(self._told),
            socket.gethostname(),
            "" if self._binds_itself() else own_loopback(),
            settings.scheduler_facts(os.environ),
        )

    def _binds_itself(self) -> bool:
        """Whether gloo is told its interface, so that the machine's own name does not matter."""
        return self._told.address.interface is not None or "GLOO_SOCKET_IFNAME" in os.environ

    def _nonce_file(self) -> Path:
        return self._told.run.control / f"nonce-{self._told.job}"

    def _read_nonce(self) -> str:
        """What node 0 wrote into the run directory; a directory that is not shared does not have it."""
        deadline = time.monotonic() + _NONCE_TRIES_S
        while True:
            try:
                os.listdir(self._told.run.control)  # NFS: an earlier start's file may be remembered
                return open(self._nonce_file()).read()
            except OSError:
                if time.monotonic() > deadline:
                    return ""
                time.sleep(0.2)

    def _is_over(self) -> bool:
        link = self._link
        return (
            link is None
            or link.lost is not None
            or (link.verdict is not None and link.verdict.action == "exit")
        )

    def _awaits_next_node_0(self, link: Link) -> bool:
        """Whether a pod that has done nothing yet met a node 0 that has gone: an earlier start's, or one
        that was stopped. Kubernetes puts another into its place."""
        verdict = link.verdict
        gone = verdict is None or verdict.exit_code in (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
        told = self._told
        return told.in_pod and told.node != 0 and gone and self._attempt is None and self._asked is None

    def _leave(self, link: Link) -> End:
        verdict = link.verdict
        if verdict is None:
            logger.info("no verdict: %s", link.lost)
            self._console.note(f"node {self._told.node} leaves: {link.lost}")
            return End(int(ExitCode.ATTEMPT_LOST), link.lost or "no verdict", attempt=self._attempt)
        link.send(Bye(self._told.node))
        if self._server is not None:
            self._server.wait_until_over(bounds.PROCESS_DEATH_S)
        link.close()
        if self._told.node == 0:
            self._last_words(verdict)
        return self._end_of(verdict)

    def _end_of(self, verdict: Verdict) -> End:
        if not self._told.in_pod:
            return End(verdict.exit_code, verdict.why)
        why = verdict.why
        if verdict.exit_code == ExitCode.PREEMPTED:
            why = why_preempted(self._told, self._attempt, why)
        failure = None if verdict.failure is None else Failure.from_record(dict(verdict.failure))
        leaves_with = code_for_scheduler(self._told.launcher, verdict.exit_code, failure)
        return End(verdict.exit_code, why, failure, self._attempt, leaves_with)

    def _last_words(self, verdict: Verdict) -> None:
        if verdict.failure is None:
            if verdict.exit_code not in (0, ExitCode.PREEMPTED):
                self._console.note(verdict.why)
        elif self._told.launcher != "local":  # there the launcher says it, at the end of all output
            failure = read_failure(self._told.run) or Failure.from_record(dict(verdict.failure))
            print(render_failure(failure, verdict.exit_code), file=sys.stderr)

    def _on_signal(self, reason: str) -> None:
        self._asked = self._asked or reason
        self._stopping.ask()
        if self._link is not None:
            self._link.send(StopAsked(self._told.node, reason))

    def _on_stop_from_node_0(self, reason: str) -> None:
        self._asked = self._asked or reason
        self._stopping.ask()

    def _on_waiting(self, waiting: Waiting) -> None:
        missing = ", ".join(f"node {node}" for node in waiting.missing)
        present = ", ".join(f"node {node} ({host})" for node, host in sorted(waiting.present.items()))
        text = f"waiting for {missing} since {waiting.waited_s:.0f} s; here: {present or 'nobody'}"
        logger.info(text)
        if self._told.node == 0:
            self._console.note(text)

    def _watch_orders(self, recorder: RunRecorder) -> None:
        """What other commands and other starts of the job leave in control/ for node 0."""
        cancel, cancelled = self._told.run.control / CANCEL_FILE, False
        while True:
            if not cancelled and cancel.exists():
                cancelled = True
                self._on_signal(CANCEL)
            if (by := recorder.superseded) is not None and self._server is not None:
                code = ExitCode.ATTEMPT_LOST if self._told.in_pod else ExitCode.UNAVAILABLE
                self._server.end(f"the job's later start {by} has taken the run over", code)
                return
            time.sleep(0.2)


def _run_key(told: Settings) -> bytes:
    """The launcher wrote it (0600) before it started any agent."""
    try:
        return (told.run.control / "key").read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the run key {told.run.control / 'key'} cannot be read: {error.strerror}",
            cause="the run directory is not shared by this node, or it belongs to another user",
        ) from error


def _gone(link: Link) -> str:
    return link.lost or (link.verdict.why if link.verdict is not None else "no verdict")
