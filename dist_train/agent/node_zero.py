"""What node 0 runs for the whole job: records, coordinator, its server, and commands left in control/."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from dist_train.agent import timeouts
from dist_train.agent.coordination.address import family_of
from dist_train.agent.coordination.coordinator import Coordinator, Send, Timing
from dist_train.agent.coordination.coordinator_server import CoordinatorServer
from dist_train.agent.coordination.handshake import Identity
from dist_train.agent.coordination.messages import StacksAsked
from dist_train.agent.coordination.store_address import (
    EVERYWHERE,
    choose_store_address,
    own_addresses,
)
from dist_train.agent.descriptor_limit import raise_descriptor_limit
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.records.recorder import RunRecorder
from dist_train.agent.records.run_dir_nonce import write_nonce
from dist_train.agent.settings import Settings
from dist_train.errors import DistTrainError, ExitCode
from dist_train.jobs.host_port import loopback, loopback_of
from dist_train.rundir.failure import Failure
from dist_train.rundir.lost_node import LostNode
from dist_train.rundir.requests.stacks_request import StacksRequest, read_requests

logger = logging.getLogger(__name__)
_POLL_S = 0.2


class NodeZero:
    """Node 0's records, coordinator and server; its agent connects to them as those of all other nodes do.

    Args:
        note: prints a line for the user.
        stop_asked: whether a stop was asked for, while an earlier owner of the run is waited for.
        on_cancel: called once when `dist-train cancel` asks for the end.
    """

    def __init__(
        self,
        settings: Settings,
        platform: Platform,
        identity: Identity,
        note: Callable[[str], None],
        stop_asked: Callable[[], bool],
        on_cancel: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._platform = platform
        self._note = note
        self._on_cancel = on_cancel
        self._store: object | None = None
        ranks = settings.world_size if settings.init_method == "env://" else 0
        raise_descriptor_limit(settings.nodes + ranks)
        self._recorder = RunRecorder(settings, platform)
        self._recorder.start(stop_asked)
        try:
            self._start_server(identity)
        except BaseException:
            self._recorder.close()
            raise

    def _start_server(self, identity: Identity) -> None:
        settings, platform = self._settings, self._platform
        platform.record_submission(settings, os.environ)
        self._coordinator = Coordinator(
            settings.nodes,
            write_nonce(settings),
            self._recorder,
            self._open_store,
            time.monotonic,
            Timing(join_s=settings.join_s),
            replaces_nodes=platform.replaces_nodes,
        )
        logger.info("the other nodes connect to %s (%s)", settings.address.host, settings.address.why)
        listener = settings.endpoint.listen(settings.address.host)
        self.port = int(listener.getsockname()[1])
        self.loopback = loopback_of(listener)
        self._server = CoordinatorServer(listener, identity, self._coordinator, self._end_with_error)
        self._server.start()
        threading.Thread(target=self._watch_control, name="agent-control", daemon=True).start()

    def wait_until_over(self, timeout_s: float) -> None:
        """Wait until every node has read the verdict, bounded."""
        self._server.wait_until_over(timeout_s)

    def close(self) -> None:
        """Stop listening, release the run."""
        self._server.close()
        self._recorder.close()

    def _open_store(self, reached: frozenset[str]) -> tuple[str, int]:
        """Open a new store for the ranks of each attempt: torch adds no attempt prefix to their keys."""
        from datetime import timedelta

        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch lists it in no __all__

        host = self._platform.store_host(self._settings)
        where = choose_store_address(reached, own_addresses(), host, loopback())
        logger.info("the ranks' store is at %s: %s", where.advertised, where.why)
        if where.bind == EVERYWHERE:
            self._note(f"the ranks' store listens on all addresses of this host: {where.why}")
        timeout = timedelta(seconds=timeouts.STORE_CALL_S)
        # On an IPv4 socket, as the agents' own: torch's server looks up the name of each rank's address in
        # its one thread, and ::ffff:127.0.0.1 is in no /etc/hosts. A slow name server would stop all ranks.
        # IPv6, and that alone, only where the host has no IPv4.
        family = family_of(where.bind or where.advertised)
        listener = socket.create_server((where.bind, 0), family=family, backlog=1024)
        port = int(listener.getsockname()[1])
        store = TCPStore(
            # Its own client: no name is looked up, which may lead to the other family.
            where.bind or ("::1" if family == socket.AF_INET6 else "127.0.0.1"),
            port,
            None,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._store = store
        return where.advertised, store.port

    def _end_with_error(self, error: BaseException) -> list[Send]:
        """End the run on all nodes with the reason why node 0 cannot go on (a full disk, changed code)."""
        if self._coordinator.phase == "over":
            return []
        known = error if isinstance(error, DistTrainError) else None
        code = known.exit_code if known else ExitCode.INTERNAL
        why = str(known) if known else f"node 0 failed: {error!r}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            code = ExitCode.CHECKPOINT_WRITE
            why = f"the run's records cannot be written: {error.strerror}: {self._settings.run.path}"
        sends = self._coordinator.fault(why, code)
        verdict = self._coordinator.verdict
        try:
            if verdict is not None and verdict.failure is not None:
                self._recorder.ended(verdict, Failure.from_record(dict(verdict.failure)))
        except OSError:
            self._note(verdict.why if verdict else repr(error))
        return sends

    def _watch_control(self) -> None:
        """Poll control/ for `dist-train cancel`, a lost node, and a later start that claims the run."""
        requests = _ControlRequests(self._settings)
        failing: str | None = None
        while True:
            try:
                if (lost := requests.lost_node()) is not None:
                    self._server.agent_ended(lost)
                if requests.cancelled():
                    self._on_cancel()
                for asked in requests.stacks():
                    self._server.send_to_all(StacksAsked(asked.id, list(asked.ranks)))
                if (by := self._recorder.superseded) is not None:
                    why = f"the job's later start {by} has taken the run over"
                    self._server.end(why, self._platform.superseded_code)
                    return
                failing = None
            except (OSError, ValueError) as error:  # a stale handle of NFS: the next look finds the file
                if str(error) != failing:
                    logger.warning("control/ could not be read, and is read again: %s", error)
                failing = str(error)
            time.sleep(_POLL_S)


class _ControlRequests:
    """What was left in control/, each reported once."""

    def __init__(self, settings: Settings) -> None:
        self._cancel = settings.run.cancel_request
        self._lost_node = settings.run.lost_node(settings.job)
        self._is_cancelled = self._is_lost = False
        self._run = settings.run
        self._stacks_stamp: tuple[int, int] | None = None
        self._stacks: frozenset[str] = frozenset()

    def lost_node(self) -> LostNode | None:
        """Return the node whose agent has ended, the first time that it is seen."""
        found = None if self._is_lost else LostNode.read(self._lost_node)
        self._is_lost = self._is_lost or found is not None
        return found

    def stacks(self) -> list[StacksRequest]:
        """Return the requests for stacks, each the first time that it is seen."""
        try:
            found = self._run.stacks_request.stat()
        except FileNotFoundError:
            return []
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stacks_stamp:
            return []
        there = {request.id: request for request in read_requests(self._run)}
        new = [request for name, request in there.items() if name not in self._stacks]
        self._stacks_stamp, self._stacks = stamp, frozenset(there)
        return new

    def cancelled(self) -> bool:
        """Whether `dist-train cancel` has asked, the first time that it is seen."""
        first = not self._is_cancelled and self._cancel.exists()
        self._is_cancelled = self._is_cancelled or first
        return first
