"""What the system allows a rank: /dev/shm, ulimits, cgroup limits."""

from __future__ import annotations

from collections.abc import Iterator

from dist_train.doctor.facts import UNLIMITED, Facts, LimitFacts
from dist_train.doctor.finding import Finding
from dist_train.rundir.format_amounts import size

_DOCKER_SHM = 64 << 20  # Docker's default; NCCL and loader workers need more
_SHM_PER_RANK = 256 << 20
# Node 0 has a connection per node and per rank; a rank has files, loader workers and sockets.
_FILES_OF_A_RANK = 1024
_FILES_BESIDE = 64
_PROCESSES_PER_RANK = 64
_MEMORY_PER_RANK = 1 << 30


def limit_findings(facts: Facts) -> Iterator[Finding]:
    """Each node's limits against what ranks and agents need."""
    for node in facts.nodes:
        if node.limits is None:
            continue
        has_infiniband = any(port.active for port in node.network.infiniband)
        yield _shm(node.node, node.limits, facts.job.procs)
        yield _nofile(node.node, node.limits, facts.job.nodes * (facts.job.procs + 1))
        yield _memlock(node.node, node.limits, has_infiniband)
        yield _nproc(node.node, node.limits, facts.job.procs)
        yield _cores(node.node, node.limits, facts.job.procs)
        yield _memory(node.node, node.limits, facts.job.procs)


def _shm(node: int, limits: LimitFacts, procs: int) -> Finding:
    what = "/dev/shm"
    hint = "docker run --shm-size=8g; --shm 8Gi on Kubernetes; a larger tmpfs on the host"
    why = "loader workers hand over their batches there, and NCCL its buffers: a bus error ends them"
    if limits.shm_total is None or limits.shm_free is None:
        return Finding("error", what, "none", (node,), why, hint)
    value = f"{size(limits.shm_free)} free of {size(limits.shm_total)}"
    small = limits.shm_total <= _DOCKER_SHM or limits.shm_free < _SHM_PER_RANK * procs
    if small:
        return Finding("warning", what, value, (node,), why, hint)
    return Finding("ok", what, value, (node,))


def _nofile(node: int, limits: LimitFacts, connections: int) -> Finding:
    what, value = "ulimit -n", _count(limits.nofile, "open files")
    if node == 0 and _below(limits.nofile_hard, connections + _FILES_BESIDE):
        return Finding(
            "error",
            what,
            f"{value}, at most {limits.nofile_hard}",
            (node,),
            f"node 0 holds {connections} connections of agents and ranks",
            "raise the hard limit: LimitNOFILE of slurmd or containerd, /etc/security/limits.conf",
        )
    if _below(limits.nofile, _FILES_OF_A_RANK):
        return Finding(
            "warning",
            what,
            value,
            (node,),
            "loader workers and sockets of a rank use that many",
            f"ulimit -n {_FILES_OF_A_RANK * 4} before the launch (--setup on Slurm)",
        )
    return Finding("ok", what, value, (node,))


def _memlock(node: int, limits: LimitFacts, has_infiniband: bool) -> Finding:
    what = "ulimit -l"
    value = "unlimited" if limits.memlock == UNLIMITED else f"{size(limits.memlock)} of locked memory"
    if has_infiniband and limits.memlock != UNLIMITED:
        return Finding(
            "error",
            what,
            value,
            (node,),
            "InfiniBand pins the buffers that it sends: NCCL ends with `ibv_reg_mr failed`",
            "memlock unlimited: LimitMEMLOCK=infinity of slurmd or containerd; --rdma on Kubernetes",
        )
    return Finding("ok", what, value, (node,))


def _nproc(node: int, limits: LimitFacts, procs: int) -> Finding:
    what, value = "ulimit -u", _count(limits.nproc, "processes")
    if _below(limits.nproc, _PROCESSES_PER_RANK * procs):
        return Finding(
            "warning",
            what,
            value,
            (node,),
            "threads count too, of all your processes there: a rank fails with `can't start new thread`",
            "ulimit -u 65536 before the launch, or pids limits of the container",
        )
    return Finding("ok", what, value, (node,))


def _cores(node: int, limits: LimitFacts, procs: int) -> Finding:
    cores = limits.cores
    value = str(cores.amount) if cores.amount == cores.machine else f"{cores.amount} of {cores.machine}"
    if cores.amount < procs:
        return Finding(
            "warning",
            "cores",
            f"{value} for {procs} processes",
            (node,),
            f"ranks wait for each other's core: {cores.reason}",
            "--cpus-per-gpu N on Slurm and Kubernetes, or fewer processes per node",
        )
    return Finding("ok", "cores", value, (node,))


def _memory(node: int, limits: LimitFacts, procs: int) -> Finding:
    memory = limits.memory
    value = size(memory.amount)
    if memory.amount < memory.machine:
        value += f" of {size(memory.machine)}"
    if 0 < memory.amount < _MEMORY_PER_RANK * procs:
        return Finding(
            "warning",
            "memory",
            f"{value} for {procs} processes",
            (node,),
            f"torch alone takes some 0.5 GiB per process: {memory.reason}",
            "--mem 64G on Slurm and Kubernetes, or fewer processes per node",
        )
    return Finding("ok", "memory", value, (node,))


def _below(limit: int, wanted: int) -> bool:
    return limit != UNLIMITED and limit < wanted


def _count(limit: int, of: str) -> str:
    return "unlimited" if limit == UNLIMITED else f"{limit} {of}"
