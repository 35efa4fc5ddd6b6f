"""The API server over HTTP on 127.0.0.1, for the official client and kubectl, unchanged.

kmock (its KubernetesScaffold) answers the discovery: /, /version, /api, /apis. The rest is a layer of ours in
front of it (k8s_requests.py), because kmock 0.8 keeps objects without uid, resourceVersion and selectors, has
no PUT, no DELETE of collections, no status door, and cannot read /api/v1/namespaces.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from k8s_log_lines import LogLines
from k8s_requests import Front, Logs, NoLogs, Request
from k8s_rules import Rules
from k8s_store import Store


@dataclass
class ApiServer:
    """The HTTP side of a store, in a thread of its own; can be stopped and started on the same port.

    Attributes:
        requests: all since the last `clear`, in order of arrival.
        up: whether it listens.
    """

    store: Store
    rules: Rules = field(default_factory=Rules)
    logs: Logs = field(default_factory=NoLogs)
    requests: list[Request] = field(default_factory=list)
    up: bool = False

    def __post_init__(self) -> None:
        # Bound and never listening: while the server is down nobody else takes the port.
        self._guard = _bound(0)
        self.port: int = self._guard.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="k8s-api", daemon=True)
        self._runner: web.ServerRunner | None = None
        self._wake: asyncio.Event | None = None
        self._log_lines = LogLines()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; again after `stop` with all that was there."""
        if not self._thread.is_alive():
            self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """Cut every connection and refuse new ones."""
        self._call(self._close())

    def end(self) -> None:
        """For good: also the thread."""
        if self._thread.is_alive():
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()
        self._guard.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _listen(self) -> None:
        self._wake = asyncio.Event()
        self.store.listeners.append(self._stir)
        self._front = Front(
            self.store, self.rules, self.logs, self._log_lines, self.requests, lambda: self.bell
        )
        await self._front.__aenter__()
        # What the handlers wait for never comes once the server is down.
        self._runner = web.ServerRunner(web.Server(self._front), shutdown_timeout=0.01)
        await self._runner.setup()
        sock = _bound(self.port)
        await web.SockSite(self._runner, sock, backlog=128).start()
        self.up = True

    async def _close(self) -> None:
        if self._runner is not None:
            self.up = False
            self.store.listeners.remove(self._stir)
            await self._runner.cleanup()
            await self._front.__aexit__()
            # Watches and logs whose clients were cut off.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._runner = None

    def _stir(self) -> None:
        self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        # A new bell each time: whoever holds the old one wakes, and nobody has to reset it.
        if self._wake is not None:
            self._wake.set()
            self._wake = asyncio.Event()

    @property
    def bell(self) -> asyncio.Event:
        """Rings at the next change; take it before you look."""
        assert self._wake is not None
        return self._wake


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock
