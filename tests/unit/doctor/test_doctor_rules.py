"""From facts to findings: one thing is wrong, and that finding alone comes out, with its nodes and a hint."""

from __future__ import annotations

import pytest
from made_facts import cluster, gpu, network, node, peer, problems
from wrong_facts import NETWORK_AND_SPEED, NODES
from wrong_limits import LIMITS_AND_DISKS

from dist_train.doctor.examine import examine
from dist_train.doctor.facts import Facts

TABLE = [*NODES, *LIMITS_AND_DISKS, *NETWORK_AND_SPEED]


@pytest.mark.parametrize(
    ("facts", "severity", "check", "nodes", "parts"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_what_is_wrong_is_the_one_finding(
    facts: Facts, severity: str, check: str, nodes: tuple[int, ...], parts: list[str]
) -> None:
    (found,) = problems(facts)
    assert (found.severity, found.check, found.nodes) == (severity, check, nodes)
    for part in parts:
        assert part in f"{found.value}\n{found.cause}\n{found.hint}"
    assert found.cause


def test_a_slice_of_a_gpu_per_rank_and_amds_gpus_are_no_problem() -> None:
    slices = [node(n, gpus=(gpu(0).model_copy(update={"number": "0:1", "nvlinks": ()}),)) for n in range(3)]
    assert not problems(cluster(*slices, links=()))
    rocm = {"dist-train": "0.1.0", "torch": "2.13.0", "ROCm of torch": "7.1"}
    assert not problems(cluster(*(node(n, versions=rocm) for n in range(3))))


def test_fewer_gpus_than_processes() -> None:
    found = problems(cluster(node(1, gpus=()), links=()))
    errors = [one for one in found if one.severity == "error"]
    assert [(one.nodes, one.value) for one in errors] == [((1,), "0 GPUs for 2 processes")]


def test_a_healthy_cluster_has_no_problem_and_says_what_was_looked_at() -> None:
    found = examine(cluster())
    assert {finding.severity for finding in found} == {"ok"}
    assert {finding.check for finding in found} >= {
        *("versions", "GPUs", "interface", "connections", "clock", "links within a node"),
        *("links between nodes", "all-reduce", "run directory", "shared files", "/dev/shm", "ulimit -n"),
        *("ulimit -l", "ulimit -u", "cores", "memory"),
    }


def test_what_is_alike_on_all_nodes_is_one_finding() -> None:
    (found,) = [finding for finding in examine(cluster(nodes=64)) if finding.check == "ulimit -n"]
    assert found.nodes == tuple(range(64))


def test_a_node_behind_a_firewall_is_named() -> None:
    peers = [
        peer(a, b, problem="refused") if 2 in (a, b) else peer(a, b)
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    found = [one for one in problems(cluster(nodes=4, peers=tuple(peers))) if one.check == "connections"]
    assert len(found) == 6
    assert all("node 2 is in all failed pairs" in one.cause for one in found)


def test_one_rank_alone_has_nothing_to_measure() -> None:
    facts = cluster(nodes=1, device="cpu", peers=(), links=(), all_reduces=())
    facts = facts.model_copy(update={"job": facts.job.model_copy(update={"procs": 1})})
    found = {finding.check: finding for finding in examine(facts)}
    assert not problems(facts)
    assert found["all-reduce"].severity == found["GPUs"].severity == "skipped"


def test_simulated_nodes_may_talk_over_loopback() -> None:
    nodes = [
        node(n, host="laptop", network=network(n, loopback="127.0.1.1", interface="lo")) for n in range(3)
    ]
    assert not problems(cluster(*nodes, device="cpu", links=(), all_reduces=()))
