"""The agent's life: settings, node 0's ears, the link, the attempts, the verdict, the exit code."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dist_train.agent import bounds, by_hand, settings
from dist_train.agent.address import own_loopback
from dist_train.agent.boot import die_with_parent
from dist_train.agent.console import Console
from dist_train.agent.coordinator import CANCEL, Coordinator, Send, Timing
from dist_train.agent.endpoint import Endpoint, connect
from dist_train.agent.fingerprint import fingerprint
from dist_train.agent.hello import Identity
from dist_train.agent.link import Link
from dist_train.agent.messages import Bye, Join, StopAsked, Verdict, Waiting
from dist_train.agent.recorder import RunRecorder, write_verdict
from dist_train.agent.server import Server
from dist_train.agent.settings import Settings
from dist_train.agent.stopping import Stopping, wait_for_signals
from dist_train.agent.title import set_title
from dist_train.errors import DistTrainError, ExitCode
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.records import write_bytes_atomic
from dist_train.rundir.report import render_failure

logger = logging.getLogger(__name__)
CANCEL_FILE = "cancel"
_NONCE_TRIES_S = 10.0


def main(argv: Sequence[str]) -> None:
    """Run one agent; does not return."""
    code = int(ExitCode.INTERNAL)
    told: Settings | None = None
    try:
        told = settings.read(argv)
        if told.parent_pid is not None:
            die_with_parent(told.parent_pid, signal.SIGTERM)
        _log_to_file(told)
        set_title(f"dist-train agent node={told.node} run={told.run.path}")
        code = Node(told).run()
    except DistTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        code = int(error.exit_code)
        if told is not None and told.node == 0 and told.launcher != "local":
            _tell_launcher(told, code, error.what)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    except BaseException:
        logging.getLogger("dist_train").exception("the agent failed")
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass  # the terminal is gone; the code must still be told
        # torch's store threads must not hold the exit up.
        os._exit(code)


def _tell_launcher(told: Settings, code: int, why: str) -> None:
    """Node 0 ends before any attempt: without a verdict its launcher would take it for lost."""
    try:
        write_verdict(told, code, why)
    except OSError as error:
        print(f"[dist-train] the verdict could not be written: {error}", file=sys.stderr)


def _log_to_file(told: Settings) -> None:
    told.run.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.FileHandler(told.run.logs / f"node-{told.node}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("dist_train", "torch.distributed.elastic"):
        package = logging.getLogger(name)
        package.setLevel(logging.INFO)
        package.addHandler(handler)
        package.propagate = False


class Node:
    """One node's part of the job."""

    def __init__(self, told: Settings) -> None:
        self._told = told
        self._console = Console(told.host, told.show_ranks)
        self._stopping = Stopping(told.grace_s, reads_the_flag=told.kind == "config")
        self._asked: str | None = None
        self._me = Identity(told.run_id, _run_key(told))
        self._link: Link | None = None
        self._recorder: RunRecorder | None = None
        self._server: Server | None = None
        self._store: object | None = None
        wait_for_signals(self._on_signal)

    def run(self) -> int:
        """Attempts until the verdict; returns the exit code that every agent returns."""
        if self._told.node == 0:
            self._open_ears()
        try:
            # torch is imported while the other nodes find us.
            from dist_train.agent.elastic import NodeAgent, run_agent
            from dist_train.agent.rendezvous import AttemptOver, NodeRendezvous

            link = self._connect()
            rendezvous = NodeRendezvous(
                link,
                self._told.run_id,
                self._told.node,
                self._told.nodes,
                self._join,
                lambda start: agent.begin(start),
            )
            agent = NodeAgent(self._told, link, self._console, self._stopping, rendezvous)
            try:
                run_agent(agent, self._is_over)
            except AttemptOver:
                pass
            return self._leave(link)
        finally:
            if self._server is not None:
                self._server.close()
            if self._recorder is not None:
                self._recorder.close()

    def _open_ears(self) -> None:
        told = self._told
        recorder = RunRecorder(told)
        recorder.start()
        by_hand.describe(told)
        self._recorder = recorder
        nonce = secrets.token_hex(8)
        write_bytes_atomic(self._nonce_file(), nonce.encode())
        timing = Timing(join_s=told.join_s)
        coordinator = Coordinator(told.nodes, nonce, recorder, self._open_store, time.monotonic, timing)
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
        timeout = timedelta(seconds=bounds.STORE_CALL_S)
        store = TCPStore(host, 0, None, True, timeout, wait_for_workers=False)
        self._store = store
        return host, store.port

    def _connect(self) -> Link:
        endpoint = self._told.endpoint
        if self._told.node == 0:
            endpoint = Endpoint("127.0.0.1", self._port)
        connection, reader = connect(
            endpoint,
            self._me,
            self._told.node,
            time.monotonic() + self._told.join_s,
            self._console.note,
            lambda: self._asked is not None,
        )
        self._link = Link(connection, reader, self._on_stop_from_node_0, self._on_waiting)
        if self._asked is not None:
            self._link.send(StopAsked(self._told.node, self._asked))
        return self._link

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

    def _leave(self, link: Link) -> int:
        verdict = link.verdict
        if verdict is None:
            logger.info("no verdict: %s", link.lost)
            self._console.note(f"node {self._told.node} leaves: {link.lost}")
            return int(ExitCode.ATTEMPT_LOST)
        link.send(Bye(self._told.node))
        if self._server is not None:
            self._server.wait_until_over(bounds.PROCESS_DEATH_S)
        link.close()
        if self._told.node == 0:
            self._last_words(verdict)
        return verdict.exit_code

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
                self._server.end(f"the job's later start {by} has taken the run over", ExitCode.UNAVAILABLE)
                return
            time.sleep(0.2)


def _run_key(told: Settings) -> bytes:
    """The launcher wrote it (0600) before it started any agent."""
    try:
        return (told.run.control / "key").read_bytes()
    except OSError as error:
        from dist_train.errors import ConfigError

        raise ConfigError(
            f"the run key {told.run.control / 'key'} cannot be read: {error.strerror}",
            cause="the run directory is not shared by this node, or it belongs to another user",
        ) from error
