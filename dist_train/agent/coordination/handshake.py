"""The handshake: check that the other side is an agent of this run, before anything else is sent.

A TCPStore client that faces a listener which never answers hangs for ever and ignores its
timeout, so nothing of torch connects before this has succeeded. Both sides prove that they know the run
key, so that an old agent or another user's job is refused with a reason and not by a hang.

    node 0 -> peer:  dist-train 1 <run_id> <challenge>
    peer -> node 0:  {"node": 1, "version": "0.1.0", "challenge": "…", "mac": "…"}
    node 0 -> peer:  {"ok": true, "mac": "…"}   or   {"ok": false, "why": "…", "for_ever": false}
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from dataclasses import dataclass

from dist_train import __version__
from dist_train.agent import timeouts
from dist_train.errors import ConfigError, RendezvousError

_PROTOCOL = "1"
_LONGEST_LINE = 1 << 20  # of the handshake: from a stranger no more is kept


@dataclass(frozen=True)
class Identity:
    """The run that this agent belongs to."""

    run_id: str
    key: bytes

    def mac(self, *parts: object) -> str:
        """Compute the HMAC of these parts by the run key, which proves that the sender knows it."""
        text = "|".join(str(part) for part in (self.run_id, *parts))
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


class NoAnswer(Exception):
    """The listener accepted the connection and has sent nothing (yet)."""


class NodeRefused(ConfigError):
    """Node 0 of this run will never accept this node: another version, a rank that does not fit."""


class LineReader:
    """Reads lines from a socket; buffers what came after the last newline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = bytearray()
        self._longest: int | None = _LONGEST_LINE

    def trust(self) -> None:
        """Accept lines of any length from now on: the other side is an agent of this run."""
        self._longest = None

    def line(self) -> bytes | None:
        """Read the next line without its newline; None at the end; raises TimeoutError."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            chunk = self._connection.recv(65536)
            if not chunk or (self._longest is not None and searched > self._longest):
                return None
            self._rest += chunk
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line


def answer_handshake(
    connection: socket.socket, reader: LineReader, identity: Identity, nodes: int, taken: set[int]
) -> int | None:
    """Do node 0's side; return the peer's node rank, or None if it was refused."""
    challenge = secrets.token_hex(16)
    connection.sendall(f"dist-train {_PROTOCOL} {identity.run_id} {challenge}\n".encode())
    line = reader.line()
    try:
        request = json.loads(line or b"")
        node = int(request["node"])
        version, mac, theirs = str(request["version"]), str(request["mac"]), str(request["challenge"])
    except (ValueError, KeyError, TypeError):
        return None
    why, for_ever = None, False
    if not hmac.compare_digest(mac, identity.mac(challenge, node)):
        why = "it does not know this run's key: its run directory is another one"
    elif version != __version__:
        why, for_ever = f"it runs dist-train {version}, node 0 runs {__version__}", True
    elif not 0 <= node < nodes:
        why, for_ever = f"its node rank {node} does not fit {nodes} nodes", True
    elif node in taken:
        why = f"node rank {node} is given twice"
    refusal = {"ok": False, "why": why, "for_ever": for_ever}
    reply = refusal if why else {"ok": True, "mac": identity.mac(theirs, "node 0")}
    connection.sendall(json.dumps(reply).encode() + b"\n")
    if why:
        return None
    reader.trust()
    return node


def request_handshake(
    connection: socket.socket, reader: LineReader, identity: Identity, node: int, where: str
) -> None:
    """Do a peer's side; raises NoAnswer, RendezvousError (another program) or ConfigError (refused)."""
    try:
        greeting = reader.line()
    except TimeoutError:
        raise NoAnswer(f"{where} accepts connections but sends nothing") from None
    words = (greeting or b"").decode(errors="replace").split()
    if len(words) != 4 or words[0] != "dist-train":
        raise RendezvousError(
            f"{where} is not an agent of dist-train: it sent {greeting!r}",
            cause="another program listens on this port",
            hint="give the run another port, or end that program",
        )
    if words[1] != _PROTOCOL or words[2] != identity.run_id:
        raise ConfigError(
            f"{where} belongs to another run: {words[2]}, not {identity.run_id}",
            hint="end the other run (`dist-train cancel`), or give this one another port",
        )
    mine = secrets.token_hex(16)
    request = {"node": node, "version": __version__, "challenge": mine, "mac": identity.mac(words[3], node)}
    connection.sendall(json.dumps(request).encode() + b"\n")
    try:
        reply = json.loads(reader.line() or b"{}")
    except ValueError:
        reply = {}
    if not reply.get("ok"):
        refused = NodeRefused if reply.get("for_ever") else ConfigError
        raise refused(
            f"node 0 at {where} refused node {node}: {reply.get('why', 'it closed the connection')}"
        )
    if not hmac.compare_digest(str(reply.get("mac", "")), identity.mac(mine, "node 0")):
        raise RendezvousError(f"{where} claims to be node 0 of this run, but does not know the run's key")
    connection.settimeout(timeouts.HEARTBEAT_LOST_S)
    reader.trust()
