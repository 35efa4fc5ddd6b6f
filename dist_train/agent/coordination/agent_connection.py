"""A node's end of its connection to node 0, after the handshake: messages out, messages in."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from dist_train.agent import timeouts
from dist_train.agent.coordination.handshake import ConnectionSeals
from dist_train.agent.coordination.line_buffer import LineReader
from dist_train.agent.coordination.messages import LONGEST_MESSAGE, Message, decode, encode


class AgentConnection:
    """Messages over a blocking socket; `send` is for any thread, `receive` for one.

    Args:
        reader: what the handshake has read with; it may hold the first message.
    """

    def __init__(self, connection: socket.socket, reader: LineReader, seals: ConnectionSeals) -> None:
        self._connection = connection
        self._reader = reader
        self._seals = seals
        self._lock = threading.Lock()
        connection.settimeout(timeouts.HEARTBEAT_LOST_S)
        reader.trust(LONGEST_MESSAGE)

    @property
    def peer_address(self) -> str:
        """The IP address at which node 0 was reached."""
        return str(self._connection.getpeername()[0])

    def send(self, message: Message) -> None:
        """Send a message; raises OSError."""
        payload = encode(message)
        with self._lock:
            self._connection.sendall(b"%b%b\n" % (self._seals.sent.mark(payload), payload))

    def receive(self) -> Message | None:
        """Return the next message, None at the end.

        Raises TimeoutError when nothing came for HEARTBEAT_LOST_S, ValueError (WrongMac, LineTooLong among
        them) for what node 0 has not sent, OSError.
        """
        line = self._reader.line()
        return None if line is None else decode(self._seals.received.check(line))

    def close(self) -> None:
        """Close the connection; a thread that waits in receive() gets its end."""
        with suppress(OSError):  # the other side has gone before
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
