"""From facts to findings: one thing is wrong, and that finding alone comes out, with its nodes and a hint."""

from __future__ import annotations

from typing import Any

import pytest
from made_facts import GIB, VERSIONS, cluster, disk, gpu, limits, link, network, node, peer, problems

from dist_train.doctor.examine import examine
from dist_train.doctor.facts import (
    AllReduceSpeed,
    Amount,
    Facts,
    Interface,
    JobEnd,
    NvLink,
    SharedFileFacts,
)

DOWN = tuple(NvLink(number=n, active=n > 2, rate=25e9 if n > 2 else None) for n in range(18))
WORN = tuple(NvLink(number=n, active=True, rate=25e9, errors=7 if n == 3 else 0) for n in range(18))
ETH1 = Interface(name="eth1", addresses=("10.1.0.2",), mtu=9000, speed=400_000)


def versions(**changed: str) -> dict[str, str]:
    return VERSIONS | {name.replace("_", " "): value for name, value in changed.items()}


def with_mtu(mtu: int) -> Any:
    usual = network(1)
    eth0 = usual.interfaces[0].model_copy(update={"mtu": mtu})
    return node(1, network=usual.model_copy(update={"interfaces": (eth0, usual.interfaces[1])}))


# id, facts, severity, check, nodes, parts of value, cause and hint together
TABLE: list[tuple[str, Facts, str, str, tuple[int, ...], list[str]]] = [
    (
        "NCCL differs",
        cluster(node(1, versions=versions(NCCL="2.27.5"))),
        "error",
        "versions",
        (1,),
        ["NCCL 2.27.5, where others have 2.28.9", "one image by its digest"],
    ),
    (
        "kernel differs",
        cluster(node(2, versions=versions(kernel="5.15"))),
        "warning",
        "versions",
        (2,),
        ["kernel 5.15, where others have 6.1.0"],
    ),
    (
        "driver of an older CUDA",
        cluster(*(node(n, versions=versions(CUDA_of_the_driver="12.8", driver="570")) for n in range(3))),
        "error",
        "versions",
        (0, 1, 2),
        ["driver 570 knows CUDA 12.8, torch is built for 13.0"],
    ),
    (
        "torch without CUDA",
        cluster(*(node(n, versions=versions(CUDA_of_torch="none")) for n in range(3))),
        "error",
        "versions",
        (0, 1, 2),
        ["built without CUDA", "--device cpu"],
    ),
    (
        "uncorrected ECC errors",
        cluster(node(1, gpus=(gpu(0), gpu(1, uncorrected_ecc=2)))),
        "error",
        "GPU ECC",
        (1,),
        ["GPU 1 (GPU-1): 2 uncorrected errors", "--gpu-reset -i 1"],
    ),
    (
        "no spare row",
        cluster(node(1, gpus=(gpu(0, remap_failed=True), gpu(1)))),
        "error",
        "GPU ECC",
        (1,),
        ["could not be replaced"],
    ),
    (
        "rows to be replaced",
        cluster(node(1, gpus=(gpu(0, remap_pending=True), gpu(1)))),
        "warning",
        "GPU ECC",
        (1,),
        ["wait to be replaced"],
    ),
    (
        "NVLinks down",
        cluster(node(0, gpus=(gpu(0, nvlinks=DOWN), gpu(1)))),
        "warning",
        "NVLink",
        (0,),
        ["3 of 18 links are down", "fabric manager"],
    ),
    (
        "NVLink errors",
        cluster(node(0, gpus=(gpu(0, nvlinks=WORN), gpu(1)))),
        "warning",
        "NVLink",
        (0,),
        ["7 errors on 1 links"],
    ),
    (
        "heat",
        cluster(node(2, gpus=(gpu(0, slowdowns=("heat",), temperature=88), gpu(1)))),
        "warning",
        "GPU clock",
        (2,),
        ["heat, 88 °C", "cooling"],
    ),
    (
        "half of the lanes",
        cluster(node(2, gpus=(gpu(0, pcie_width=8), gpu(1)))),
        "warning",
        "PCIe",
        (2,),
        ["8 of 16 lanes"],
    ),
    (
        "somebody else's memory",
        cluster(node(2, gpus=(gpu(0, others_memory=70 * GIB), gpu(1)))),
        "warning",
        "GPU memory",
        (2,),
        ["other processes hold 70.0 GiB of 80.0 GiB"],
    ),
    (
        "prohibited",
        cluster(node(2, gpus=(gpu(0, prohibited=True), gpu(1)))),
        "error",
        "GPUs",
        (2,),
        ["compute mode is prohibited", "-c DEFAULT"],
    ),
    (
        "a lost card",
        cluster(node(1, unusable_gpus=("GPU 2: GPU is lost",))),
        "error",
        "GPUs",
        (1,),
        ["not usable: GPU 2: GPU is lost"],
    ),
    (
        "another kind of GPU",
        cluster(node(1, gpus=(gpu(0, name="A100"), gpu(1, name="A100")))),
        "warning",
        "GPUs",
        (1,),
        ["A100, A100, where others have H100, H100"],
    ),
    (
        "small /dev/shm",
        cluster(*(node(n, limits=limits(shm_total=64 << 20, shm_free=64 << 20)) for n in range(3))),
        "warning",
        "/dev/shm",
        (0, 1, 2),
        ["64.0 MiB free of 64.0 MiB", "--shm 8Gi"],
    ),
    (
        "no /dev/shm",
        cluster(node(1, limits=limits(shm_total=None))),
        "error",
        "/dev/shm",
        (1,),
        ["none"],
    ),
    (
        "few open files",
        cluster(node(1, limits=limits(nofile=256))),
        "warning",
        "ulimit -n",
        (1,),
        ["256 open files", "ulimit -n 4096"],
    ),
    (
        "too few open files for node 0",
        cluster(node(0, limits=limits(nofile=64, nofile_hard=64))),
        "error",
        "ulimit -n",
        (0,),
        ["at most 64", "9 connections"],
    ),
    (
        "locked memory beside InfiniBand",
        cluster(node(1, limits=limits(memlock=65536))),
        "error",
        "ulimit -l",
        (1,),
        ["64.0 KiB", "ibv_reg_mr", "--rdma"],
    ),
    (
        "few processes",
        cluster(node(1, limits=limits(nproc=100))),
        "warning",
        "ulimit -u",
        (1,),
        ["100 processes"],
    ),
    (
        "a core for two",
        cluster(node(1, limits=limits(cores=Amount(amount=1, machine=64, reason="CPU quota")))),
        "warning",
        "cores",
        (1,),
        ["1 of 64 for 2 processes", "CPU quota", "--cpus-per-gpu"],
    ),
    (
        "little memory",
        cluster(node(1, limits=limits(memory=Amount(amount=GIB, machine=64 * GIB, reason="cgroup")))),
        "warning",
        "memory",
        (1,),
        ["1.0 GiB of 64.0 GiB for 2 processes", "--mem"],
    ),
    (
        "a full disk",
        cluster(node(1, disks=(disk(free=1 << 20),))),
        "error",
        "run directory",
        (1,),
        ["1.0 MiB free", "ends with 74"],
    ),
    (
        "little room",
        cluster(node(1, disks=(disk(free=2 * GIB, what="temporary files", path="/tmp"),))),
        "warning",
        "temporary files",
        (1,),
        ["2.0 GiB free", "set TMPDIR"],
    ),
    (
        "no inodes",
        cluster(node(1, disks=(disk(free_files=12),))),
        "warning",
        "run directory",
        (1,),
        ["12 files"],
    ),
    (
        "read-only",
        cluster(node(1, disks=(disk(problem="Read-only file system"),))),
        "error",
        "run directory",
        (1,),
        ["Read-only file system", "--run-dir"],
    ),
    (
        "a slow disk",
        cluster(node(1, disks=(disk(write_s=1.5),))),
        "warning",
        "run directory",
        (1,),
        ["1500 ms"],
    ),
    (
        "no locks",
        cluster(node(1, disks=(disk(locks=False),))),
        "warning",
        "run directory",
        (1,),
        ["flock does not work"],
    ),
    (
        "old content after a close",
        cluster(nodes=2, shared_files=(SharedFileFacts(node=1, new_s=0.1, rewritten_s=3.0, stale=True),)),
        "warning",
        "shared files",
        (0, 1),
        ["after 3.0 s", "close-to-open", "actimeo"],
    ),
    (
        "never seen",
        cluster(nodes=2, shared_files=(SharedFileFacts(node=1),)),
        "error",
        "shared files",
        (0, 1),
        ["node 1 never saw a new file"],
    ),
    (
        "late",
        cluster(nodes=2, shared_files=(SharedFileFacts(node=1, new_s=30.0, rewritten_s=0.1),)),
        "warning",
        "shared files",
        (0, 1),
        ["after 30.0 s"],
    ),
    (
        "a firewall",
        cluster(
            nodes=2,
            peers=(peer(0, 1), peer(1, 0, problem="Connection timed out", clock_ahead_s=None)),
        ),
        "error",
        "connections",
        (0, 1),
        ["node 1 does not reach node 0 at 10.0.0.1 port 4000: Connection timed out", "NetworkPolicy"],
    ),
    (
        "a clock",
        cluster(peers=(peer(1, 0, clock_ahead_s=-12.5), peer(2, 0))),
        "warning",
        "clock",
        (1,),
        ["+12.5 s against node 0", "chrony"],
    ),
    (
        "node 0's clock",
        cluster(peers=(peer(1, 0, clock_ahead_s=7.0), peer(2, 0, clock_ahead_s=7.1))),
        "warning",
        "clock",
        (0,),
        ["-7.0 s against node 1"],
    ),
    (
        "a name that is loopback",
        cluster(node(1, network=network(1, loopback="127.0.1.1", address="127.0.1.1"))),
        "error",
        "interface",
        (1,),
        ["its own name means 127.0.1.1", "/etc/hosts"],
    ),
    (
        "a bridge",
        cluster(
            node(
                1,
                network=network(
                    1, interface="docker0", interfaces=(Interface(name="docker0", addresses=("172.17.0.1",)),)
                ),
            )
        ),
        "error",
        "interface",
        (1,),
        ["docker0", "--interface NAME"],
    ),
    (
        "an interface that is not there",
        cluster(node(1, network=network(1, missing="ib7", chosen_by="GLOO_SOCKET_IFNAME=ib7"))),
        "error",
        "interface",
        (1,),
        ["there is no ib7", "GLOO_SOCKET_IFNAME=ib7 names it", "eth0, lo"],
    ),
    (
        "a faster one beside it",
        cluster(node(1, network=network(1, interfaces=(*network(1).interfaces, ETH1)))),
        "warning",
        "interface",
        (1,),
        ["eth1 is faster (400 Gbit/s)", "--interface eth1"],
    ),
    ("MTU", cluster(with_mtu(1500)), "warning", "interface", (1,), ["MTU 1500, where others have 9000"]),
    (
        "a slow link between nodes",
        cluster(nodes=2, links=(link(0, 2, 45e9), link(2, 0, 11e9))),
        "warning",
        "links between nodes",
        (0, 1),
        ["rank 2 to rank 0: 11.0 GB/s", "InfiniBand should give 50.0 GB/s"],
    ),
    (
        "PCIe in the place of NVLink",
        cluster(nodes=2, links=(link(0, 1, 380e9), link(2, 3, 50e9))),
        "warning",
        "links within a node",
        (1,),
        ["rank 2 to rank 3: 50.0 GB/s", "NVLink should give 450.0 GB/s", "topo -m"],
    ),
    (
        "slower than its like",
        cluster(
            *(node(n, host="one") for n in range(3)),
            links=tuple(link(2 * n, 2 * n + 1, 1e9 if n else 0.3e9, "gloo") for n in range(3)),
        ),
        "warning",
        "links within a node",
        (0,),
        ["300 MB/s", "the median of 3 such links is 1.0 GB/s"],
    ),
    (
        "wrong sums",
        cluster(all_reduces=(AllReduceSpeed(backend="nccl", ranks=6, size=64, seconds=1, wrong="3 of 16"),)),
        "error",
        "all-reduce",
        (),
        ["3 of 16", "do not train on them"],
    ),
    (
        "a node that says nothing",
        cluster(nodes=2).model_copy(update={"nodes": (node(0),)}),
        "error",
        "nodes",
        (1,),
        ["1 of 2 have said nothing"],
    ),
    (
        "a part that could not be read",
        cluster(node(1, problems=("GPUs: NVMLError: Unknown Error",))),
        "warning",
        "nodes",
        (1,),
        ["NVMLError"],
    ),
    (
        "a job that has failed",
        cluster(end=JobEnd(code=78, message="node 1 has another torch", hint="one image")),
        "error",
        "job",
        (),
        ["node 1 has another torch", "exit code 78", "one image"],
    ),
]


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
