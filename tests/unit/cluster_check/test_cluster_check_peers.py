"""Connections between nodes, clocks and shared files, over real sockets and files of this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_train.cluster_check.node_listener import NodeListener, shared_file
from dist_train.cluster_check.peer_probe import look_at_shared_files, probe
from dist_train.doctor.facts import NetworkFacts, NodeFacts

SECRET = "of this job"


@pytest.fixture
def node_zero(tmp_path: Path) -> Iterator[NodeFacts]:
    """Node 0 with its listener."""
    listener = NodeListener(SECRET, tmp_path)
    yield NodeFacts(node=0, host="n0", port=listener.port, network=NetworkFacts(address="127.0.0.1"))
    listener.close()


def test_a_node_that_answers(node_zero: NodeFacts) -> None:
    found = probe(1, node_zero, SECRET)
    assert (found.node, found.peer, found.problem) == (1, 0, "")
    assert found.round_trip_s is not None
    assert 0 < found.round_trip_s < 5
    assert found.clock_ahead_s is not None
    assert abs(found.clock_ahead_s) <= found.round_trip_s


def test_a_clock_that_is_ahead(node_zero: NodeFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    listener = threading.current_thread()
    # The prober's clock is an hour behind: its thread is this one.
    monkeypatch.setattr(
        time, "time", lambda: real() - (3600 if threading.current_thread() is listener else 0)
    )
    ahead = probe(1, node_zero, SECRET).clock_ahead_s
    assert ahead == pytest.approx(3600, abs=5)


def test_nobody_listens(node_zero: NodeFacts) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = node_zero.model_copy(update={"port": free.getsockname()[1]})
        found = probe(1, gone, SECRET)
    assert found.problem == "Connection refused"
    assert found.address == f"127.0.0.1 port {gone.port}"


def test_a_stranger_gets_no_answer_and_no_file(node_zero: NodeFacts, tmp_path: Path) -> None:
    assert probe(1, node_zero, "guessed").problem == "it closed the connection"
    with socket.create_connection(("127.0.0.1", node_zero.port), timeout=10) as stranger:
        stranger.sendall(json.dumps({"secret": "", "node": 1, "write": "x"}).encode() + b"\n")
        assert stranger.recv(100) == b""
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_node_zero_is_seen_new_and_rewritten(node_zero: NodeFacts, tmp_path: Path) -> None:
    found = look_at_shared_files(1, node_zero, SECRET, tmp_path)
    assert (found.problem, found.stale) == ("", False)
    assert found.new_s is not None
    assert found.rewritten_s is not None
    assert shared_file(tmp_path, 1).read_text() == "again"


def test_a_directory_that_is_not_shared(node_zero: NodeFacts, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another"
    elsewhere.mkdir()
    found = look_at_shared_files(1, node_zero, SECRET, elsewhere, bound_s=0.2)
    assert (found.new_s, found.rewritten_s) == (None, None)


def test_a_file_system_that_shows_old_content(
    node_zero: NodeFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS with a long attribute cache: the first opens after the rewrite read what was there before."""
    from dist_train.cluster_check import peer_probe

    real, looks = peer_probe._read, 0

    def cached(path: Path) -> str | None:
        nonlocal looks
        content = real(path)
        if content == "again" and looks < 3:
            looks += 1
            return "first"
        return content

    monkeypatch.setattr(peer_probe, "_read", cached)
    assert look_at_shared_files(1, node_zero, SECRET, tmp_path).stale
