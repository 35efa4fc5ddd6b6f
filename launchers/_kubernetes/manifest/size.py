"""What a node asks of the cluster: cores, memory, /dev/shm, disk, GPUs; never nothing, never unbounded.

Quotas refuse a pod that leaves a request or a limit out, so what was not asked for has a default here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import words
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.quantities import mebibytes, mem_mebibytes, memory

GPU = "nvidia.com/gpu"
DISK = "ephemeral-storage"
# Per rank, where nothing is said.
_CPUS = {"cpu": 1, "cuda": 2}
# On CPU a first try must fit a small cluster, so of what nobody asked for only this part is reserved.
_CPU_RESERVED_MILLI = 250
_MEM_RESERVED_MIB = 1024
_DISK_RESERVED_MIB = 1024
_MEM_MIB = {"cpu": 2048, "cuda": 8192}
# Logs, /tmp and the caches of compilers below it.
_DISK_MIB = {"cpu": 4096, "cuda": 16384}
_SHM_MOST_MIB = 8192
# What the agent and one rank need beside /dev/shm.
_LEAST_BESIDE_MIB = 512


@dataclass(frozen=True)
class NodeSize:
    """The size of one node's pod: its limits. `others` are free-form, by resource name.

    `reserved` holds those requests that are smaller than the limit.
    """

    cpus: int
    mem_mib: int
    shm_mib: int
    gpus: int
    disk: str
    others: tuple[tuple[str, str], ...]
    reserved: tuple[tuple[str, str], ...]


def node_size(spec: JobSpec, options: Options) -> NodeSize:
    """From --mem, --cpus-per-gpu, --shm, --resource; raises ConfigError where they do not fit together."""
    others = words.pairs(options.resource)
    disk = others.pop(DISK, memory(_DISK_MIB[spec.device]))
    mem = _mem_mib(spec, options)
    shm = mebibytes(options.shm) if options.shm else min(_SHM_MOST_MIB, mem // 4)
    if mem - shm < _LEAST_BESIDE_MIB:
        raise ConfigError(
            f"--shm {memory(shm)} leaves {max(0, mem - shm)} MiB of {memory(mem)} for the processes",
            cause="/dev/shm lies in memory and counts towards the pod's limit",
            mend=f"--mem {-(-(shm + _LEAST_BESIDE_MIB * 4) // 1024)}G, or a smaller --shm",
        )
    return NodeSize(
        cpus=_cpus(spec),
        mem_mib=mem,
        shm_mib=shm,
        gpus=spec.procs_per_node if spec.device == "cuda" else 0,
        disk=disk,
        others=tuple(others.items()),
        reserved=tuple(_reserved(spec, options).items()),
    )


def _reserved(spec: JobSpec, options: Options) -> dict[str, str]:
    if spec.device != "cpu":
        return {}
    ranks, asked = spec.procs_per_node, dict(spec.resources)
    cpu = {} if "cpus_per_gpu" in asked else {"cpu": f"{_CPU_RESERVED_MILLI * ranks}m"}
    mem = {} if "mem" in asked or options.shm else {"memory": memory(_MEM_RESERVED_MIB * ranks)}
    disk = {} if DISK in words.pairs(options.resource) else {DISK: memory(_DISK_RESERVED_MIB)}
    return {**cpu, **mem, **disk}


def assumed(spec: JobSpec) -> list[str]:
    """What was not asked for and has a default, as `cores: --cpus-per-gpu` for the person who launches."""
    asked = dict(spec.resources)
    found = []
    if "cpus_per_gpu" not in asked:
        cores = _cpus(spec)
        found.append(f"{cores} core{'s' if cores > 1 else ''} (--cpus-per-gpu)")
    if "mem" not in asked:
        found.append(f"{memory(_MEM_MIB[spec.device] * spec.procs_per_node)} memory (--mem)")
    return found


def _cpus(spec: JobSpec) -> int:
    asked = dict(spec.resources).get("cpus_per_gpu")
    per_rank = int(asked) if asked else max(spec.threads_per_rank, _CPUS[spec.device])
    return per_rank * spec.procs_per_node


def _mem_mib(spec: JobSpec, options: Options) -> int:
    asked = dict(spec.resources).get("mem")
    if asked is None:
        beside = mebibytes(options.shm) if options.shm else 0
        return _MEM_MIB[spec.device] * spec.procs_per_node + beside
    try:
        return mem_mebibytes(asked)
    except ValueError as error:
        raise ConfigError(f"--mem {asked}: {error}") from None
