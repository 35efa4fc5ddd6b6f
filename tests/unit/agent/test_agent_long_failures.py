"""Failure reports of any size: cut for the record, and never a reason to lose a node."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from dist_train.agent.coordination.coordinator import Coordinator, Send
from dist_train.agent.coordination.coordinator_server import CoordinatorServer
from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import LONGEST_LINE, Identity
from dist_train.agent.coordination.line_buffer import LineReader, LineTooLong
from dist_train.agent.coordination.messages import (
    Heartbeat,
    Message,
    NodeFailed,
    Start,
    Verdict,
    encode,
)
from dist_train.agent.settings import Settings
from dist_train.agent.workers.failure_report import failure_of
from dist_train.agent.workers.memory_watch import MemoryWatch
from dist_train.agent.workers.rank import Rank
from dist_train.agent.workers.rank_log import RankLog

KEY = Identity("run-1", b"key")
START = Start(0, "h", 29500)
LONG = "could not load: " + "x" * 400_000 + " (the real reason)"


def ended_rank(folder: Path, tail: str = "") -> Rank:
    (folder / "error.json").write_text(
        json.dumps({"exception": "ValueError", "text": LONG, "traceback": LONG, "hint": LONG, "line": 3})
    )
    process = subprocess.Popen(["true"])
    process.wait()
    rank = Rank(0, 0, process, folder / "error.json", RankLog(folder, 0), returncode=1)
    rank.stderr_tail.append(tail)
    rank.log.close()
    return rank


def test_a_long_message_is_reported_by_head_and_tail(tmp_path: Path) -> None:
    settings = cast(
        Settings, type("Here", (), {"node": 0, "host": "h", "world_size": 2, "memory_option": ""})
    )
    failure = failure_of(ended_rank(tmp_path, "x" * 2_000_000), settings, START, None, MemoryWatch())
    for text in (failure.message, failure.traceback or "", failure.hint or ""):
        assert "could not load" in text
        assert text.endswith("(the real reason)")
        assert f"characters left out: all are in {tmp_path / 'error.json'}] …" in text
    assert "characters left out] …" in failure.log_tail[0]  # the report names the log
    # What a terminal shows of it: 50 full lines of the message, and a part of the last lines.
    assert len(failure.message) < 4_200
    assert len(failure.log_tail[0]) < 600
    assert len(encode(NodeFailed(0, [failure.to_record()], 0))) < 100_000


def test_a_peers_end_within_a_long_message_is_still_recognised(tmp_path: Path) -> None:
    rank = ended_rank(tmp_path)
    text = "x" * 200_000 + " gloo: connection closed by peer" + "x" * 200_000
    rank.error_file.write_text(json.dumps({"exception": "RuntimeError", "text": text}))
    settings = cast(
        Settings, type("Here", (), {"node": 0, "host": "h", "world_size": 2, "memory_option": ""})
    )
    assert failure_of(rank, settings, START, None, MemoryWatch()).cls == "victim"


def test_a_long_last_word_of_a_rank_without_an_exception_is_in_its_log(tmp_path: Path) -> None:
    rank = ended_rank(tmp_path)
    rank.error_file.unlink()
    rank.returncode, rank.abort_line = -6, f"  what():  {LONG}"
    settings = cast(
        Settings, type("Here", (), {"node": 0, "host": "h", "world_size": 2, "memory_option": ""})
    )
    failure = failure_of(rank, settings, START, None, MemoryWatch())
    assert f"characters left out: all are in {rank.log.path}] …" in failure.message


class Recorded:
    """Stands for the coordinator behind a real server: keeps what it is told."""

    nodes = 2

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.losses: list[str] = []
        self.changed = threading.Event()

    def receive(self, node: int, message: Message) -> list[Send]:
        self.received.append(message)
        self.changed.set()
        # As long an answer: the verdict repeats the failure.
        return [(node, Verdict("exit", 1, "why", {"message": "y" * 3_000_000}))]

    def lost(self, node: int, why: str) -> list[Send]:
        self.losses.append(why)
        self.changed.set()
        return []

    def tick(self) -> list[Send]:
        return []


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_message_of_any_size_reaches_node_0_and_back(size: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
    coordinator = Recorded()
    server = CoordinatorServer(listener, KEY, cast(Coordinator, coordinator), lambda error: [])
    server.start()
    deadline = time.monotonic() + 20.0
    connection = connect(endpoint, KEY, 1, deadline, lambda text: None, lambda: False)
    try:
        sent = NodeFailed(1, [{"class": "exception", "message": "x" * size}], 0)
        connection.send(sent)
        assert coordinator.changed.wait(20)
        assert coordinator.received == [sent], coordinator.losses
        answer: Message = Heartbeat()
        while isinstance(answer, Heartbeat):
            received = connection.receive()
            assert received is not None
            answer = received
        assert isinstance(answer, Verdict)
        assert answer.failure is not None
        assert len(answer.failure["message"]) == 3_000_000
    finally:
        connection.close()
        server.close()


class Chunks:
    """A socket that delivers these bytes in chunks as recv does."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)

    def recv(self, most: int) -> bytes:
        return self._stream.read(min(most, 4096))


def test_a_stranger_may_not_send_a_long_line() -> None:
    content = Chunks(b"x" * (4 << 20) + b"\n")
    with pytest.raises(LineTooLong):
        LineReader(cast(socket.socket, content), LONGEST_LINE).line()
