"""A node's connection to the coordinator; node 0's own agent uses one too, so that all nodes are alike."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dist_train.agent import timeouts
from dist_train.agent.coordination.agent_connection import AgentConnection
from dist_train.agent.coordination.message_seal import WrongMac
from dist_train.agent.coordination.messages import (
    Heartbeat,
    Message,
    StacksAsked,
    Start,
    StopAsked,
    StopWorkers,
    Verdict,
    Waiting,
)

logger = logging.getLogger(__name__)


class CoordinatorClient:
    """Sends at once; keeps what it has received until the agent's main thread reads it.

    Args:
        on_stop: called with the reason when node 0 asks all nodes to save and stop.
        on_waiting: called with the nodes that have not joined yet.
        on_stacks: called with a request for stacks; must return at once.
    """

    def __init__(
        self,
        connection: AgentConnection,
        on_stop: Callable[[str], None],
        on_waiting: Callable[[Waiting], None],
        on_stacks: Callable[[StacksAsked], None] = lambda asked: None,
    ) -> None:
        self._connection = connection
        self._on_stop = on_stop
        self._on_waiting = on_waiting
        self._on_stacks = on_stacks
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self.start: Start | None = None
        self.stop_workers: StopWorkers | None = None
        self.verdict: Verdict | None = None
        self.lost: str | None = None
        for target, name in ((self._read, "agent-client"), (self._send_heartbeats, "agent-heartbeat")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; a broken connection sets `lost` and raises nothing."""
        try:
            self._connection.send(message)
        except OSError as error:
            self._set_lost(f"node 0 does not answer: {error.strerror or error}")

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `ready()` or the connection is lost; return whether it became ready in time."""
        with self._changed:
            self._changed.wait_for(lambda: ready() or self.lost is not None, timeout_s)
            return ready()

    def wake(self) -> None:
        """Let `wait` look again: what it waits for may have come from elsewhere."""
        with self._changed:
            self._changed.notify_all()

    def begin_attempt(self) -> None:
        """Drop the last attempt's messages, but not the run's end; called before the next Join is sent."""
        with self._changed:
            self.start = self.stop_workers = None
            if not self.is_over:
                self.verdict = None

    @property
    def is_over(self) -> bool:
        """Whether node 0 has ended the run: no further attempt begins."""
        return self.verdict is not None and self.verdict.action == "exit"

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._connection.close()

    def _read(self) -> None:
        why = "node 0's agent is gone (its connection closed)"
        try:
            while (message := self._connection.receive()) is not None:
                self._receive(message)
        except TimeoutError:
            why = f"no heartbeat of node 0 for {timeouts.HEARTBEAT_LOST_S:g} s"
        except WrongMac as error:
            why = "what comes from node 0 is not its agent's (a wrong MAC)"
            logger.warning("connection to node 0: %s", error)
            self._connection.close()
        except (OSError, ValueError) as error:
            if not self._closed.is_set():  # closed here: there is nothing to tell
                logger.info("connection to node 0: %s", error)
        self._set_lost(why)

    def _receive(self, message: Message) -> None:
        match message:
            case StopAsked():
                self._on_stop(message.reason)
            case Waiting():
                self._on_waiting(message)
            case StacksAsked():
                self._on_stacks(message)
        with self._changed:
            match message:
                case Start():
                    self.start = message
                    self.stop_workers = self.verdict = None  # what came before it belongs to the last attempt
                case StopWorkers():
                    self.stop_workers = message
                case Verdict():
                    self.verdict = message
            self._changed.notify_all()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(timeouts.HEARTBEAT_S):
            self.send(Heartbeat())

    def _set_lost(self, why: str) -> None:
        with self._changed:
            if self.lost is None and not self._closed.is_set():
                self.lost = why
            self._changed.notify_all()
