"""Facts of a made-up cluster in which nothing is wrong, to be changed in one place by a test."""

from __future__ import annotations

from typing import Any

from dist_train.doctor.examine import examine
from dist_train.doctor.facts import (
    UNLIMITED,
    AllReduceSpeed,
    Amount,
    DiskFacts,
    Facts,
    GpuFacts,
    InfinibandPort,
    Interface,
    JobFacts,
    LimitFacts,
    LinkSpeed,
    NetworkFacts,
    NodeFacts,
    NvLink,
    PeerFacts,
    SharedFileFacts,
)
from dist_train.doctor.finding import Finding

GIB = 1 << 30
VERSIONS = {
    "dist-train": "0.1.0",
    "torch": "2.13.0",
    "Python": "3.11.2",
    "CUDA of torch": "13.0",
    "NCCL": "2.28.9",
    "driver": "580.95",
    "CUDA of the driver": "13.0",
    "kernel": "6.1.0",
}


def gpu(number: int = 0, **changed: Any) -> GpuFacts:
    """A healthy H100 with 18 NVLinks."""
    links = tuple(NvLink(number=n, active=True, rate=25e9, errors=0) for n in range(18))
    usual: dict[str, Any] = {
        "number": str(number),
        "uuid": f"GPU-{number}",
        "name": "H100",
        "memory_total": 80 * GIB,
        "ecc": True,
        "uncorrected_ecc": 0,
        "remap_pending": False,
        "remap_failed": False,
        "temperature": 40,
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_width_most": 16,
        "nvlinks": links,
    }
    return GpuFacts(**usual | changed)


def network(node: int, **changed: Any) -> NetworkFacts:
    """eth0 with 100 Gbit/s and an InfiniBand port with 400."""
    usual: dict[str, Any] = {
        "interfaces": (
            Interface(name="eth0", addresses=(f"10.0.0.{node + 1}",), mtu=9000, speed=100_000),
            Interface(name="lo", addresses=("127.0.0.1",), mtu=65536),
        ),
        "infiniband": (InfinibandPort(device="mlx5_0", port=1, active=True, rate=400),),
        "interface": "eth0",
        "address": f"10.0.0.{node + 1}",
        "chosen_by": f"the name n{node}",
    }
    return NetworkFacts(**usual | changed)


def limits(**changed: Any) -> LimitFacts:
    """No limit, and much of everything."""
    usual: dict[str, Any] = {
        "nofile": 65536,
        "nofile_hard": 65536,
        "memlock": UNLIMITED,
        "nproc": UNLIMITED,
        "cores": Amount(amount=64, machine=64, reason="all cores of the machine"),
        "memory": Amount(amount=512 * GIB, machine=512 * GIB, reason="all memory of the machine"),
        "shm_total": 256 * GIB,
        "shm_free": 255 * GIB,
    }
    return LimitFacts(**usual | changed)


def disk(**changed: Any) -> DiskFacts:
    """A fast shared file system with room."""
    usual: dict[str, Any] = {
        "what": "run directory",
        "path": "/shared/runs/doctor-1/doctor",
        "kind": "nfs4",
        "free": 900 * GIB,
        "total": 1000 * GIB,
        "free_files": 10**7,
        "write_s": 0.004,
        "locks": True,
    }
    return DiskFacts(**usual | changed)


def node(number: int, **changed: Any) -> NodeFacts:
    """One of the nodes."""
    usual: dict[str, Any] = {
        "node": number,
        "host": f"n{number}",
        "versions": VERSIONS,
        "gpus": (gpu(0), gpu(1)),
        "network": network(number),
        "limits": limits(),
        "disks": (disk(),),
        "port": 4000,
    }
    return NodeFacts(**usual | changed)


def peer(one: int, other: int, **changed: Any) -> PeerFacts:
    """A connection of 0.1 ms, clocks alike."""
    usual: dict[str, Any] = {
        "address": f"10.0.0.{other + 1} port 4000",
        "round_trip_s": 1e-4,
        "clock_ahead_s": 0.0,
    }
    return PeerFacts(node=one, peer=other, **usual | changed)


def link(one: int, other: int, rate: float, backend: str = "nccl") -> LinkSpeed:
    """Between ranks of nodes with two ranks each."""
    return LinkSpeed(backend=backend, ranks=(one, other), nodes=(one // 2, other // 2), rate=rate)


def cluster(*changed: NodeFacts, nodes: int = 3, device: str = "cuda", **more: Any) -> Facts:
    """Three nodes with two GPUs each; `changed` ones in the place of the usual."""
    others = {each.node: each for each in changed}
    usual: dict[str, Any] = {
        "job": JobFacts(nodes=nodes, procs=2, device=device, launcher="slurm"),
        "nodes": tuple(others.get(number, node(number)) for number in range(nodes)),
        "peers": tuple(peer(a, b) for a in range(nodes) for b in range(nodes) if a != b),
        "shared_files": tuple(
            SharedFileFacts(node=n, new_s=0.01, rewritten_s=0.001) for n in range(1, nodes)
        ),
        "links": (
            *(link(2 * n, 2 * n + 1, 380e9) for n in range(nodes)),
            *(link(2 * n, (2 * n + 2) % (2 * nodes), 45e9) for n in range(nodes)),
        ),
        "all_reduces": (AllReduceSpeed(backend="nccl", ranks=2 * nodes, size=256 << 20, seconds=0.01),),
    }
    return Facts(**usual | more)


def problems(facts: Facts) -> list[Finding]:
    """What is not in order."""
    return [finding for finding in examine(facts) if finding.severity in ("error", "warning")]
