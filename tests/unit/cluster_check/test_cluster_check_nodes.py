"""Several nodes check each other: each in a thread here, over real sockets and one directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from dist_train.cluster_check import node_check
from dist_train.cluster_check.node_check import NodeCheck
from dist_train.doctor.facts import NodeFacts, PeerFacts, SharedFileFacts
from dist_train.errors import UnavailableError
from dist_train.rundir import RunDir

ENVIRON = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory with its key."""
    run = RunDir(tmp_path / "doctor-1")
    run.create()
    (run.control / "key").write_bytes(b"of this run")
    return run


def check(
    run: RunDir, node: int, nodes: int, found: list[BaseModel], errors: list[UnavailableError]
) -> threading.Thread:
    """Node number `node` at work."""

    def work() -> None:
        try:
            NodeCheck(node, nodes, "cpu", run.doctor, "start-0", ENVIRON, found.append).run()
        except UnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def checked(run: RunDir, present: range, nodes: int) -> tuple[list[BaseModel], list[UnavailableError]]:
    """What node 0 has said, and the errors of all, once the nodes that are present have ended."""
    said: list[BaseModel] = []
    errors: list[UnavailableError] = []
    threads = [check(run, node, nodes, said if node == 0 else [], errors) for node in present]
    for thread in threads:
        thread.join(60)
    return said, errors


def test_three_nodes_find_each_other(run: RunDir) -> None:
    said, errors = checked(run, range(3), 3)
    assert errors == []
    assert sorted(fact.node for fact in said if isinstance(fact, NodeFacts)) == [0, 1, 2]
    peers = [fact for fact in said if isinstance(fact, PeerFacts)]
    assert sorted((peer.node, peer.peer) for peer in peers) == [
        (a, b) for a in range(3) for b in range(3) if a != b
    ]
    assert [peer.problem for peer in peers] == [""] * 6
    seen = [fact for fact in said if isinstance(fact, SharedFileFacts)]
    assert sorted(fact.node for fact in seen) == [1, 2]
    assert all(fact.new_s is not None and not fact.stale for fact in seen)
    assert not list(run.doctor.glob("shared-*")), "test files are removed"


def test_a_node_that_never_comes_ends_the_check_with_the_facts_of_the_others(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "_FACTS_S", 2.0)
    said, errors = checked(run, range(2), 3)
    assert sorted(fact.node for fact in said if isinstance(fact, NodeFacts)) == [0, 1]
    (error,) = errors
    assert error.what == "node 2 has said nothing"


def test_files_of_an_earlier_attempt_do_not_count(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(run, range(2), 2)
    monkeypatch.setattr(node_check, "_FACTS_S", 1.0)
    said: list[BaseModel] = []
    node = NodeCheck(0, 2, "cpu", run.doctor, "start-1", ENVIRON, said.append)
    with pytest.raises(UnavailableError):
        node.run()
    assert [fact.node for fact in said if isinstance(fact, NodeFacts)] == [0]


def test_in_a_large_job_each_node_connects_to_a_few(run: RunDir) -> None:
    node = NodeCheck(5, 100, "cpu", run.doctor, "start-0", ENVIRON, lambda fact: None)
    assert node._to_probe() == {0, 6, 55}
