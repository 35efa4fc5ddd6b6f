"""Reaching node 0: strangers, silence, other runs and other keys are told apart, in bounded time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dist_train.agent import bounds
from dist_train.agent.endpoint import Endpoint, connect, holder_of
from dist_train.agent.hello import Identity, LineReader, answer
from dist_train.errors import ConfigError, DistTrainError, RendezvousError

ME = Identity("run-1", b"key")


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
    endpoint: Endpoint, me: Identity = ME, node: int = 1, within_s: float = 2.0, said: list[str] | None = None
) -> None:
    said = [] if said is None else said
    connection, _ = connect(endpoint, me, node, time.monotonic() + within_s, said.append, lambda: False)
    connection.close()


def as_node_0(identity: Identity = ME, taken: set[int] = frozenset()) -> Callable[[socket.socket], None]:  # type: ignore[assignment]
    def serve(connection: socket.socket) -> None:
        answer(connection, LineReader(connection), identity, 2, set(taken))

    return serve


def test_an_agent_of_this_run_is_accepted() -> None:
    with listener(as_node_0()) as endpoint:
        reach(endpoint)


@pytest.mark.parametrize(
    ("server", "node", "error", "words"),
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
def test_strangers_are_named_at_once(
    server: Callable[[socket.socket], None], node: int, error: type[DistTrainError], words: str
) -> None:
    with listener(server) as endpoint, pytest.raises(error, match=words):
        reach(endpoint, node=node)


def test_a_listener_that_never_answers_is_named_and_the_wait_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "CONNECT_S", 0.3)
    said: list[str] = []
    held: list[socket.socket] = []
    began = time.monotonic()
    with (
        listener(held.append) as endpoint,
        pytest.raises(RendezvousError, match="accepts connections but says nothing"),
    ):
        reach(endpoint, within_s=0.5, said=said)
    assert time.monotonic() - began < 5
    assert "says nothing" in said[0]
    for connection in held:
        connection.close()


def test_nobody_there_is_said_as_refused() -> None:
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
        assert "pid" in str(error.value)
        assert "pid" in holder_of(port)


def test_node_0_publishes_a_free_port_and_peers_find_it(tmp_path: Path) -> None:
    endpoint = Endpoint.parse(f"file://{tmp_path}/rdzv-1.0")
    assert endpoint.locate() is None
    with endpoint.listen("gpu01") as server:
        assert endpoint.locate() == ("gpu01", server.getsockname()[1])


def test_a_handed_over_socket_is_used() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    endpoint = Endpoint.parse(f"tcp://127.0.0.1:{port}?fd={server.detach()}")
    with endpoint.listen("") as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize("text", ["", "127.0.0.1:29400", "http://x:1", "tcp://host", "tcp://host:notaport"])
def test_other_forms_are_refused_with_their_value(text: str) -> None:
    with pytest.raises(ConfigError, match="neither tcp://host:port nor file"):
        Endpoint.parse(text)
