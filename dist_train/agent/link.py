"""A node's connection to node 0; node 0's own agent uses one too, so that all nodes are alike."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from dist_train.agent import bounds
from dist_train.agent.hello import LineReader
from dist_train.agent.messages import (
    Beat,
    Message,
    Start,
    StopAsked,
    StopWorkers,
    Verdict,
    Waiting,
    decode,
    encode,
)

logger = logging.getLogger(__name__)


class Link:
    """Sends at once; remembers what has come in until the agent's main thread looks."""

    def __init__(
        self,
        connection: socket.socket,
        reader: LineReader,
        on_stop: Callable[[str], None],
        on_waiting: Callable[[Waiting], None],
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._on_stop = on_stop
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self.start: Start | None = None
        self.stop_workers: StopWorkers | None = None
        self.verdict: Verdict | None = None
        self.lost: str | None = None
        for target, name in ((self._read, "agent-link"), (self._beat, "agent-beat")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def send(self, message: Message) -> None:
        """Send; a dead connection shows in `lost`, not here."""
        try:
            with self._lock:
                self._connection.sendall(encode(message))
        except OSError as error:
            self._set_lost(f"node 0 does not answer: {error.strerror or error}")

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Until `ready()` or the link is lost; whether it became ready in time."""
        with self._changed:
            self._changed.wait_for(lambda: ready() or self.lost is not None, timeout_s)
            return ready()

    def wake(self) -> None:
        """Let `wait` look again."""
        with self._changed:
            self._changed.notify_all()

    def begin_round(self) -> None:
        """Forget the last attempt's messages; called before the next Join is sent."""
        with self._changed:
            self.start = self.stop_workers = self.verdict = None

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._connection.close()

    def _read(self) -> None:
        why = "node 0's agent is gone (its connection closed)"
        try:
            while (line := self._reader.line()) is not None:
                self._take(decode(line))
        except TimeoutError:
            why = f"no heartbeat of node 0 for {bounds.HEARTBEAT_LOST_S:g} s"
        except (OSError, ValueError) as error:
            logger.info("connection to node 0: %s", error)
        self._set_lost(why)

    def _take(self, message: Message) -> None:
        match message:
            case StopAsked():
                self._on_stop(message.reason)
            case Waiting():
                self._on_waiting(message)
        with self._changed:
            match message:
                case Start():
                    self.start = message
                case StopWorkers():
                    self.stop_workers = message
                case Verdict():
                    self.verdict = message
            self._changed.notify_all()

    def _beat(self) -> None:
        while not self._closed.wait(bounds.HEARTBEAT_S):
            self.send(Beat())

    def _set_lost(self, why: str) -> None:
        with self._changed:
            if self.lost is None and not self._closed.is_set():
                self.lost = why
            self._changed.notify_all()
