"""The handshake: check that the other side is an agent of this run, before anything else is sent.

A TCPStore client that faces a listener which never answers hangs for ever and ignores its
timeout, so nothing of torch connects before this has succeeded. Both sides prove that they know the run
key, so that an old agent or another user's job is refused with a reason and not by a hang. From both
challenges each side derives the keys of the connection, by which message_seal marks all that follows.

    node 0 -> peer:  dist-train 2 <run_id> <challenge>
    peer -> node 0:  {"node": 1, "version": "0.1.0", "challenge": "…", "mac": "…"}
    node 0 -> peer:  {"ok": true, "mac": "…"}   or   {"ok": false, "why": "…", "for_ever": false}
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from dist_train import __version__
from dist_train.agent import timeouts
from dist_train.agent.coordination.line_buffer import LineReader, LineTooLong
from dist_train.agent.coordination.message_seal import MessageSeal
from dist_train.errors import ConfigError, RendezvousError

_PROTOCOL = "2"
LONGEST_LINE = 4096  # a line of the handshake; no more is kept of a stranger's


@dataclass(frozen=True)
class ConnectionSeals:
    """The two directions of an accepted connection, as one of its ends uses them."""

    sent: MessageSeal
    received: MessageSeal


@dataclass(frozen=True)
class Identity:
    """The run that this agent belongs to."""

    run_id: str
    key: bytes

    def mac(self, purpose: str, *parts: object) -> str:
        """Compute the HMAC of these parts by the run key, which proves that the sender knows it.

        Args:
            purpose: what it proves; one of another purpose is never the same.
        """
        text = json.dumps([purpose, self.run_id, *(str(part) for part in parts)])
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def seals(self, at_node_0: bool, challenges: tuple[str, str], node: int) -> ConnectionSeals:
        """Derive the seals of one connection.

        Args:
            challenges: node 0's and the peer's.
        """
        down, up = (
            bytes.fromhex(self.mac(purpose, *challenges, node)) for purpose in ("from node 0", "to node 0")
        )
        sent, received = (down, up) if at_node_0 else (up, down)
        return ConnectionSeals(MessageSeal(sent), MessageSeal(received))


class NoAnswer(Exception):
    """The listener accepted the connection, and has sent nothing (yet) or has closed it again."""


class NodeRefused(ConfigError):
    """Node 0 of this run will never accept this node: another version, a rank that does not fit."""


@dataclass(frozen=True)
class Accepted:
    """A peer that has proved to be an agent of this run."""

    node: int
    seals: ConnectionSeals


class HandshakeAnswer:
    """Node 0's side of one handshake, without a socket.

    Args:
        nodes: number of nodes of the job.
    """

    def __init__(self, identity: Identity, nodes: int) -> None:
        self._identity = identity
        self._nodes = nodes
        self._challenge = secrets.token_hex(16)

    @property
    def greeting(self) -> bytes:
        """What node 0 sends first."""
        return f"dist-train {_PROTOCOL} {self._identity.run_id} {self._challenge}\n".encode()

    def answer(self, line: bytes, taken: Container[int]) -> tuple[bytes, Accepted | None]:
        """Return the reply to a peer's line (nothing to what is not a hello), and whom it accepts.

        Args:
            taken: node ranks that are connected.
        """
        request = _json_object(line)
        node, words = request.get("node"), [request.get(key) for key in ("version", "challenge", "mac")]
        if type(node) is not int or not all(isinstance(word, str) for word in words):
            return b"", None
        version, theirs, mac = (str(word) for word in words)
        why, for_ever = None, False
        if not _same(mac, self._identity.mac("node", self._challenge, node)):
            why = "it does not know this run's key: its run directory is another one"
        elif version != __version__:
            why, for_ever = f"it runs dist-train {version}, node 0 runs {__version__}", True
        elif not 0 <= node < self._nodes:
            why, for_ever = f"its node rank {node} does not fit {self._nodes} nodes", True
        elif node in taken:
            why = f"node rank {node} is given twice"
        if why is not None:
            return _encoded({"ok": False, "why": why, "for_ever": for_ever}), None
        challenges = self._challenge, theirs
        reply = {"ok": True, "mac": self._identity.mac("node 0", *challenges, node)}
        return _encoded(reply), Accepted(node, self._identity.seals(True, challenges, node))


def request_handshake(
    connection: socket.socket, reader: LineReader, identity: Identity, node: int, where: str
) -> ConnectionSeals:
    """Do a peer's side; raises NoAnswer, RendezvousError (another program) or ConfigError (refused)."""
    deadline = time.monotonic() + timeouts.CONNECT_S
    challenge = _read_greeting(reader, identity, where, deadline)
    mine = secrets.token_hex(16)
    request = {
        "node": node,
        "version": __version__,
        "challenge": mine,
        "mac": identity.mac("node", challenge, node),
    }
    connection.sendall(_encoded(request))
    try:
        line = reader.line(deadline - time.monotonic())
    except (TimeoutError, LineTooLong):
        line = None
    if line is None:
        raise NoAnswer(f"{where} closed the connection, or did not answer the handshake")
    reply = _json_object(line)
    if not reply.get("ok"):
        refused = NodeRefused if reply.get("for_ever") else ConfigError
        raise refused(f"node 0 at {where} refused node {node}: {reply.get('why', 'it gave no reason')}")
    if not _same(str(reply.get("mac", "")), identity.mac("node 0", challenge, mine, node)):
        raise RendezvousError(f"{where} claims to be node 0 of this run, but does not know the run's key")
    return identity.seals(False, (challenge, mine), node)


def _read_greeting(reader: LineReader, identity: Identity, where: str, deadline: float) -> str:
    """Return node 0's challenge."""
    try:
        greeting = reader.line(deadline - time.monotonic())
    except TimeoutError:
        raise NoAnswer(f"{where} accepts connections but sends nothing") from None
    except LineTooLong:
        greeting = b"more than a line"
    if greeting is None:
        raise NoAnswer(f"{where} closed the connection")
    words = greeting.decode(errors="replace").split()
    if len(words) != 4 or words[0] != "dist-train":
        raise RendezvousError(
            f"{where} is not an agent of dist-train: it sent {greeting!r}",
            cause="another program listens on this port",
            hint="give the run another port, or end that program",
        )
    if words[2] != identity.run_id:
        raise ConfigError(
            f"{where} belongs to another run: {words[2]}, not {identity.run_id}",
            hint="end the other run (`dist-train cancel`), or give this one another port",
        )
    if words[1] != _PROTOCOL:
        raise NodeRefused(
            f"node 0 at {where} runs another dist-train than this node: its handshake is {words[1]}, "
            f"that of {__version__} here is {_PROTOCOL}",
            hint="install the same one on all nodes",
        )
    return words[3]


def _same(mac: str, expected: str) -> bool:
    # As bytes: compare_digest refuses text that is not ASCII.
    return hmac.compare_digest(mac.encode(errors="replace"), expected.encode())


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _json_object(line: bytes) -> dict[str, Any]:
    """Parse what a stranger may have sent; empty for all that is no object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
