"""One connection at node 0's end: never blocks, bounded in what it keeps."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Container, Iterator
from itertools import islice

from dist_train.agent.coordination.handshake import LONGEST_LINE, ConnectionSeals, HandshakeAnswer
from dist_train.agent.coordination.line_buffer import LineBuffer
from dist_train.agent.coordination.messages import LONGEST_MESSAGE, Message, decode

_CHUNK = 65536
UNSENT_LIMIT = 2 * LONGEST_MESSAGE  # bytes kept for a peer that does not read


class PeerConnection:
    """A stranger until its handshake has succeeded, then the agent of `node`.

    Attributes:
        node: its node rank; None of a stranger.
        heard_at: time of the last bytes; of a stranger that of the connection.

    Args:
        address: the other side's.
        now: time of the connection.
    """

    def __init__(
        self, connection: socket.socket, address: str, handshake: HandshakeAnswer, now: float
    ) -> None:
        self.socket = connection
        self.address = address
        self.node: int | None = None
        self.heard_at = now
        self._handshake = handshake
        self._buffer = LineBuffer(LONGEST_LINE)
        self._seals: ConnectionSeals | None = None
        self._unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self._queue(handshake.greeting)

    def receive(self, now: float) -> bool:
        """Read what is there, one piece at most; return false at the end. Raises OSError."""
        try:
            chunk = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        if self.node is not None:
            self.heard_at = now
        self._buffer.feed(chunk)
        return bool(chunk)

    def greet(self, taken: Container[int]) -> bool:
        """Answer the handshake if its line is there; return false where the peer is refused.

        Raises LineTooLong.
        """
        line = self._buffer.next()
        if line is None:
            return True
        reply, accepted = self._handshake.answer(line, taken)
        self._queue(reply)
        if accepted is None:
            return False
        self.node, self._seals = accepted.node, accepted.seals
        self._buffer.longest = LONGEST_MESSAGE
        return True

    def messages(self) -> Iterator[Message]:
        """Yield the messages that are complete; raises ValueError for what the agent has not sent."""
        assert self._seals is not None
        while (line := self._buffer.next()) is not None:
            yield decode(self._seals.received.check(line))

    def send(self, payload: bytes) -> None:
        """Keep a message for sending; `payload` may be shared by many peers."""
        assert self._seals is not None
        self._queue(self._seals.sent.mark(payload))
        self._queue(payload)
        self._queue(b"\n")

    def flush(self) -> None:
        """Send as much as the kernel takes; raises OSError."""
        while self._unsent:
            try:
                sent = self.socket.sendmsg(list(islice(self._unsent, 64)))
            except BlockingIOError:
                return
            self.unsent_bytes -= sent
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.popleft())
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def _queue(self, data: bytes) -> None:
        if data:
            self._unsent.append(memoryview(data))
            self.unsent_bytes += len(data)
