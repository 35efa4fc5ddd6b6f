"""Reaching node 0: other programs, silent listeners, other runs and other keys are named, in bounded time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dist_train.agent import timeouts
from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import LONGEST_LINE, HandshakeAnswer, Identity
from dist_train.agent.coordination.line_buffer import LineReader
from dist_train.errors import ConfigError, DistTrainError, RendezvousError

OWN = Identity("run-1", b"key")


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    server = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            serve(connection)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield Endpoint("127.0.0.1", server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def reach(
    endpoint: Endpoint,
    identity: Identity = OWN,
    node: int = 1,
    within_s: float = 2.0,
    notes: list[str] | None = None,
    stale_address_s: float = 0.0,
) -> None:
    notes = [] if notes is None else notes
    deadline = time.monotonic() + within_s
    connection = connect(endpoint, identity, node, deadline, notes.append, lambda: False, stale_address_s)
    connection.close()


def as_node_0(identity: Identity = OWN, taken: set[int] = frozenset()) -> Callable[[socket.socket], None]:  # type: ignore[assignment]
    def serve(connection: socket.socket) -> None:
        handshake = HandshakeAnswer(identity, 2)
        connection.sendall(handshake.greeting)
        reply, _ = handshake.answer(LineReader(connection, LONGEST_LINE).line() or b"", taken)
        connection.sendall(reply)

    return serve


def test_an_agent_of_this_run_is_accepted() -> None:
    with listener(as_node_0()) as endpoint:
        reach(endpoint)


@pytest.mark.parametrize(
    ("server", "node", "error", "text"),
    [
        (as_node_0(Identity("run-2", b"key")), 1, ConfigError, "belongs to another run: run-2, not run-1"),
        (as_node_0(Identity("run-1", b"other")), 1, ConfigError, "does not know this run's key"),
        (as_node_0(), 7, ConfigError, "node rank 7 does not fit 2 nodes"),
        (as_node_0(taken={1}), 1, ConfigError, "node rank 1 is given twice"),
        (
            lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
            1,
            RendezvousError,
            "is not an agent of dist-train",
        ),
    ],
)
def test_other_listeners_are_named_at_once(
    server: Callable[[socket.socket], None], node: int, error: type[DistTrainError], text: str
) -> None:
    with listener(server) as endpoint, pytest.raises(error, match=text):
        reach(endpoint, node=node)


def test_a_listener_that_never_answers_is_named_and_the_wait_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "CONNECT_S", 0.3)
    notes: list[str] = []
    held: list[socket.socket] = []
    began = time.monotonic()
    with (
        listener(held.append) as endpoint,
        pytest.raises(RendezvousError, match="accepts connections but sends nothing"),
    ):
        reach(endpoint, within_s=0.5, notes=notes)
    assert time.monotonic() - began < 5
    assert "sends nothing" in notes[0]
    for connection in held:
        connection.close()


def test_a_free_port_is_reported_as_connection_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RendezvousError, match="Connection refused") as error:
        reach(Endpoint("127.0.0.1", port), within_s=0.3)
    assert error.value.exit_code == 69


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"port {port}") as error:
            Endpoint("127.0.0.1", port).listen("host")
        assert f"(pid {os.getpid()})" in str(error.value)


def test_node_0_publishes_a_free_port_and_peers_find_it(tmp_path: Path) -> None:
    endpoint = Endpoint.parse(f"file://{tmp_path}/rdzv-1.0")
    assert endpoint.locate() is None
    with endpoint.listen("gpu01") as server:
        assert endpoint.locate() == ("gpu01", server.getsockname()[1])


def test_an_inherited_socket_is_used() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    endpoint = Endpoint.parse(f"tcp://127.0.0.1:{port}?fd={server.detach()}")
    with endpoint.listen("") as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize("text", ["", "127.0.0.1:29400", "http://x:1", "tcp://host", "tcp://host:notaport"])
def test_other_forms_are_refused_with_their_value(text: str) -> None:
    with pytest.raises(ConfigError, match="neither tcp://host:port nor file"):
        Endpoint.parse(text)


def changing(*servers: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    """Another listener at each try: what an address of a cluster's DNS may lead to."""
    left = list(servers)

    def serve(connection: socket.socket) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(connection)
        connection.close()

    return serve


def test_a_stale_address_is_tried_again_and_each_reason_is_printed() -> None:
    notes: list[str] = []
    servers = (
        lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
        as_node_0(Identity("run-2", b"key")),
        as_node_0(taken={1}),
        as_node_0(),
    )
    with listener(changing(*servers)) as endpoint:
        reach(endpoint, within_s=10, notes=notes, stale_address_s=10)
    for text in ("is not an agent of dist-train", "belongs to another run: run-2", "is given twice"):
        assert any(text in line for line in notes), notes


def test_another_run_that_stays_is_named_when_the_address_counts_as_fresh() -> None:
    began = time.monotonic()
    with (
        listener(changing(as_node_0(Identity("run-2", b"key")))) as endpoint,
        pytest.raises(ConfigError, match="belongs to another run"),
    ):
        reach(endpoint, within_s=10, stale_address_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5


def test_what_node_0_will_never_accept_is_refused_at_once() -> None:
    began = time.monotonic()
    with (
        listener(changing(as_node_0())) as endpoint,
        pytest.raises(ConfigError, match="node rank 7 does not fit 2 nodes"),
    ):
        reach(endpoint, node=7, within_s=10, stale_address_s=10)
    assert time.monotonic() - began < 5


def test_a_name_is_resolved_at_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pod 0's name is unknown at first, then leads to a pod that is gone, then to the new one."""
    real = socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()[1]
    with listener(as_node_0()) as endpoint:
        answers: list[int | None] = [None, None, nobody, nobody, endpoint.port]

        def getaddrinfo(host: str, port: int, *args: int, **text: int) -> object:
            if host != "train-0.train":
                return real(host, port, *args, **text)
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return real("127.0.0.1", answer, *args, **text)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        notes: list[str] = []
        reach(Endpoint("train-0.train", 29400), within_s=10, notes=notes)
    assert "train-0.train:29400: Name or service not known" in notes[0]
    assert "Connection refused" in notes[1]
