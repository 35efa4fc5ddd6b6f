"""Facts in which one thing is wrong, and the finding that they must give."""

from __future__ import annotations

from typing import Any

from made_facts import GIB, VERSIONS, cluster, gpu, link, network, node, peer

from dist_train.doctor.facts import (
    AllReduceSpeed,
    Facts,
    Interface,
    JobEnd,
    NvLink,
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
NODES: list[tuple[str, Facts, str, str, tuple[int, ...], list[str]]] = [
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
]
NETWORK_AND_SPEED: list[tuple[str, Facts, str, str, tuple[int, ...], list[str]]] = [
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
        cluster(end=JobEnd(code=78, message="node 1 has another torch\n  cause: 2.12\n  hint:  one image")),
        "error",
        "job",
        (),
        ["node 1 has another torch", "2.12 (the doctor's own job ended with exit code 78", "one image"],
    ),
    (
        "a rank that was killed before node 0 had the facts",
        cluster(end=JobEnd(code=137, message="killed by signal 9 (SIGKILL)", node=1)),
        "error",
        "job",
        (1,),
        ["killed by signal 9", "exit code 137"],
    ),
    (
        "an agent that may open too few files, which no record says",
        cluster(end=JobEnd(code=78)),
        "error",
        "job",
        (),
        ["exit code 78 (CONFIG)", "its own output says why"],
    ),
]
