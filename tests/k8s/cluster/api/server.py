"""Serve the API over HTTP on 127.0.0.1, for the official client and kubectl as they are.

kmock (its KubernetesScaffold) answers discovery: /, /version, /api, /apis. The handler in front of it
(requests.py) serves the objects, because kmock 0.8 keeps objects without uid, resourceVersion and selectors,
has no PUT, no DELETE of collections, no /status subresource, and cannot read /api/v1/namespaces.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from cluster.api.log_lines import LogLines
from cluster.api.log_streams import LogSource, LogStreams, NoLogSource
from cluster.api.requests import Request, RequestHandler
from cluster.api.rules import Rules
from cluster.api.store import Store


@dataclass
class ApiServer:
    """HTTP server of a store, in its own thread; can be stopped and started on the same port.

    Attributes:
        logs: source of the containers' output.
        requests: all requests since the last `clear`, in order of arrival.
        up: whether the server is listening.
    """

    store: Store
    rules: Rules = field(default_factory=Rules)
    logs: LogSource = field(default_factory=NoLogSource)
    requests: list[Request] = field(default_factory=list)
    up: bool = False

    def __post_init__(self) -> None:
        # Bound and never listening: while the server is down no other process can take the port.
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="k8s-api", daemon=True)
        self._runner: web.ServerRunner | None = None
        self._next_change: asyncio.Event | None = None
        self._log_lines = LogLines()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; after `stop`, on the same port with the same objects."""
        if not self._thread.is_alive():
            self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """Close every connection and refuse new ones."""
        self._call(self._close())

    def shut_down(self) -> None:
        """Stop for good, with the thread."""
        if self._thread.is_alive():
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()
        self._reserved.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _listen(self) -> None:
        self._next_change = asyncio.Event()
        self.store.listeners.append(self._on_change)
        self._handler = RequestHandler(
            self.store,
            self.rules,
            LogStreams(self.logs, self._log_lines),
            self.requests,
            lambda: self.next_change,
        )
        await self._handler.__aenter__()
        # A short shutdown: open watches would otherwise wait for changes that no longer come.
        self._runner = web.ServerRunner(web.Server(self._handler), shutdown_timeout=0.01)
        await self._runner.setup()
        sock = _bound(self.port)
        await web.SockSite(self._runner, sock, backlog=128).start()
        self.up = True

    async def _close(self) -> None:
        if self._runner is not None:
            self.up = False
            self.store.listeners.remove(self._on_change)
            await self._runner.cleanup()
            await self._handler.__aexit__()
            # Watches and log streams whose connections were closed.
            pending = asyncio.all_tasks() - {asyncio.current_task()}
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            self._runner = None

    def _on_change(self) -> None:
        self._loop.call_soon_threadsafe(self._wake_watches)

    def _wake_watches(self) -> None:
        # A new event each time: waiters on the old one wake, and none has to be reset.
        if self._next_change is not None:
            self._next_change.set()
            self._next_change = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """Event that is set at the next change; take it before reading the store."""
        assert self._next_change is not None
        return self._next_change


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock
