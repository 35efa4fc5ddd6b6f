"""Strangers at node 0's port: idle, slow, many or malformed, they cost agents nothing and end nothing."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from node_zero_server import Kept, is_closed, join, serving, stranger

from dist_train.agent import timeouts
from dist_train.agent.coordination.endpoint import Endpoint

IDLE = """
import resource, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
connections = []
for _ in range(count):
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", port))
    connections.append(connection)
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def limit_of_1024() -> Iterator[None]:
    """The soft limit of open files that most machines have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def idle_strangers(endpoint: Endpoint, count: int) -> Iterator[None]:
    command = [sys.executable, "-c", IDLE, str(endpoint.port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.proves("1,100 idle strangers at node 0's port keep no agent out, while they stay or afterwards")
@pytest.mark.usefixtures("limit_of_1024")
def test_idle_strangers_keep_no_agent_out() -> None:
    with serving(Kept(3)) as endpoint:
        with idle_strangers(endpoint, 1100):
            during = join(endpoint, 1)
        after = join(endpoint, 2)
        for connection in (during, after):
            connection.close()


@pytest.mark.usefixtures("limit_of_1024")
def test_node_0_accepts_again_once_it_has_descriptors() -> None:
    with serving(Kept(2)) as endpoint, idle_strangers(endpoint, 1):
        with no_descriptor_left(), idle_strangers_now(endpoint):
            time.sleep(0.5)  # node 0 tries to accept the late one, and cannot
        join(endpoint, 1).close()


@contextmanager
def no_descriptor_left(but: int = 1) -> Iterator[None]:
    """Take all of this process's descriptors but one."""
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        for _ in range(but):
            os.close(taken.pop())
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


@contextmanager
def idle_strangers_now(endpoint: Endpoint) -> Iterator[None]:
    """One stranger, by this process's last descriptor."""
    with socket.socket() as late:
        late.connect((endpoint.host, endpoint.port))
        yield


def test_the_time_for_a_handshake_counts_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "CONNECT_S", 1.0)
    with serving(Kept(2)) as endpoint, stranger(endpoint) as slow:
        began = time.monotonic()
        slow.settimeout(0.1)
        while time.monotonic() - began < 10:
            try:
                slow.sendall(b"{")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                pass
            except OSError:
                break
        assert 0.9 < time.monotonic() - began < 8


REQUEST = b'{"node": %b, "version": "1", "challenge": %b, "mac": %b}'


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 4000,
        b'{"a":' * 800,
        b"[" * 100_000,
        REQUEST % (b"1e400", b'"x"', b'"x"'),
        REQUEST % (b"NaN", b'"x"', b'"x"'),
        REQUEST % (b"9" * 3000, b'"x"', b'"x"'),
        REQUEST % (b"true", b'"x"', b'"x"'),
        REQUEST % (b"1", b'"x"', '"\u00e9\U0001f600"'.encode()),
        REQUEST % (b"1", b'"x"', b'"\\ud800"'),
        REQUEST % (b"1", b'"\\ud800"', b'"x"'),
        REQUEST % (b"1", b"{}", b"[]"),
        b"null",
        b"\xff\xfe",
        b"",
        b"GET / HTTP/1.1\r",
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_a_malformed_handshake_closes_quietly(
    line: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with serving(Kept(2)) as endpoint:
        with stranger(endpoint) as connection:
            connection.sendall(line + b"\n")
            assert is_closed(connection)
        join(endpoint).close()
    assert not failed
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_20_mb_without_a_newline_are_refused_early() -> None:
    with serving(Kept(2)) as endpoint:
        with stranger(endpoint) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(b"x" * 20_000_000)
        join(endpoint).close()


def test_connections_need_no_threads_of_their_own() -> None:
    with serving(Kept(200)) as endpoint:
        before = threading.active_count()
        connections = [join(endpoint, node) for node in range(60)] + [stranger(endpoint) for _ in range(60)]
        assert threading.active_count() <= before
        for connection in connections:
            connection.close()
