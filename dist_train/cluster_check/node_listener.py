"""Answers the other nodes: with its clock, and on node 0 with files that it writes for them.

One JSON object per line, each way. It answers only who knows the secret, which is in a file of the run
directory (0600), and writes only files of its own naming.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

_IDLE_S = 120.0
_LONGEST = 4096


class NodeListener:
    """Listens from its birth until the process ends; a thread for each connection.

    Args:
        secret: what who asks must say.
        folder: where files are written for other nodes.
    """

    def __init__(self, secret: str, folder: Path) -> None:
        self._secret = secret
        self._folder = folder
        self._listener = _listen()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="doctor-listener", daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="doctor-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_IDLE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, connection.makefile("rwb") as stream:
                while line := stream.readline(_LONGEST):
                    stream.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                    stream.flush()
        except (OSError, ValueError):
            return  # it has gone, or is no node of this job

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if not hmac.compare_digest(str(asked.get("secret")), self._secret):
            raise ValueError("not a node of this job")
        if asked.get("write") is None:
            return {"time": time.time()}
        path = shared_file(self._folder, int(asked["node"]))
        content = str(asked["write"]).encode()[:_LONGEST]
        # In place, as a program that rewrites a file: the same inode, which a client may have cached.
        with path.open("r+b" if path.exists() else "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return {"time": time.time()}


def shared_file(folder: Path, node: int) -> Path:
    """The file that node 0 writes for a node."""
    return folder / f"shared-{node}"


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError:
            pass  # a container without IPv6
    return socket.create_server(("", 0), backlog=1024)
