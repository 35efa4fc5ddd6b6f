"""Resources of one node's pod: cores, memory, /dev/shm, disk, GPUs; each with a request and a limit.

Quotas refuse a pod without a request or a limit, so every resource has a default here. Only disk has none
with a queue of Kueue: most cover cores, memory and GPUs alone, and never admit what asks for more.
"""

from __future__ import annotations

from dataclasses import dataclass

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import validators
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.option_values import DISK, GPU, NONE, is_gpu
from launchers._kubernetes.manifest.quantities import mebibytes, mem_mebibytes, memory

# Defaults per rank.
_CPUS = {"cpu": 1, "cuda": 2}
# On CPU a first try must fit a small cluster: the requests of defaults are smaller than their limits.
_CPU_REQUEST_MILLI = 250
_MEM_REQUEST_MIB = 1024
_DISK_REQUEST_MIB = 1024
_MEM_MIB = {"cpu": 2048, "cuda": 8192}
# For logs, /tmp and the compiler caches in it.
_DISK_MIB = {"cpu": 4096, "cuda": 16384}
_SHM_MAX_MIB = 8192
# What the agent and one rank need besides /dev/shm.
_PROCESSES_MIN_MIB = 512


@dataclass(frozen=True)
class NodeResources:
    """The limits of one node's pod. `others`: those of --resource, by name. `gpu`: what a GPU is called.

    `disk`: the size limit of the pod's folders; `requests_disk`: also requested and limited as a resource.
    `reserved`: the requests that are smaller than their limit.
    """

    cpus: int
    mem_mib: int
    shm_mib: int
    gpus: int
    gpu: str
    disk: str
    requests_disk: bool
    others: tuple[tuple[str, str], ...]
    reserved: tuple[tuple[str, str], ...]


def node_resources(spec: JobSpec, options: Options) -> NodeResources:
    """Compute them from --mem, --cpus-per-gpu, --shm, --resource; raises ConfigError where these conflict."""
    others = validators.pairs(options.resource)
    _refuse_other_gpus(others, spec, options)
    disk = others.pop(DISK, NONE if options.kueue else "")
    mem = _mem_mib(spec, options)
    shm = mebibytes(options.shm) if options.shm else min(_SHM_MAX_MIB, mem // 4)
    if mem - shm < _PROCESSES_MIN_MIB:
        raise ConfigError(
            f"--shm {memory(shm)} leaves {max(0, mem - shm)} MiB of {memory(mem)} for the processes",
            cause="/dev/shm lies in memory and counts towards the pod's limit",
            hint=f"--mem {-(-(shm + _PROCESSES_MIN_MIB * 4) // 1024)}G, or a smaller --shm",
        )
    return NodeResources(
        cpus=_cpus(spec),
        mem_mib=mem,
        shm_mib=shm,
        gpus=spec.procs_per_node if spec.device == "cuda" else 0,
        gpu=options.gpu_resource,
        disk=disk if disk not in ("", NONE) else memory(_DISK_MIB[spec.device]),
        requests_disk=disk != NONE,
        others=tuple(others.items()),
        reserved=tuple(_reserved(spec, options).items()),
    )


def _refuse_other_gpus(others: dict[str, str], spec: JobSpec, options: Options) -> None:
    """GPUs besides those of the ranks: their number would not be that of the ranks."""
    for name, count in others.items():
        if name != options.gpu_resource and not is_gpu(name):
            continue
        own = f"{spec.procs_per_node} {options.gpu_resource}"
        has = own if spec.device == "cuda" else "no GPU (--device cpu)"
        instead = f"--gpu-resource {name} --gpus-per-node {count}"
        raise ConfigError(
            f"--resource {name}={count} asks for GPUs, and each node has {has} for its ranks",
            cause="each rank has one GPU, and --gpus-per-node says how many",
            hint=f"{instead}, without this --resource" + ("" if spec.device == "cuda" else "; --device cuda"),
        )


def gpu_taint(resource: str) -> str:
    """The key of the taint that keeps other pods off the machines with such GPUs."""
    return GPU if resource.startswith("nvidia.com/") else resource


def _reserved(spec: JobSpec, options: Options) -> dict[str, str]:
    if spec.device != "cpu":
        return {}
    ranks, asked = spec.procs_per_node, dict(spec.resources)
    cpu = {} if "cpus_per_gpu" in asked else {"cpu": f"{_CPU_REQUEST_MILLI * ranks}m"}
    mem = {} if "mem" in asked or options.shm else {"memory": memory(_MEM_REQUEST_MIB * ranks)}
    kept = DISK in validators.pairs(options.resource) or options.kueue
    disk = {} if kept else {DISK: memory(_DISK_REQUEST_MIB)}
    return {**cpu, **mem, **disk}


def assumed_defaults(spec: JobSpec) -> list[str]:
    """The defaults that apply, with their options: `2 cores (--cpus-per-gpu)`."""
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
        shm = mebibytes(options.shm) if options.shm else 0
        return _MEM_MIB[spec.device] * spec.procs_per_node + shm
    try:
        return mem_mebibytes(asked)
    except ValueError as error:
        raise ConfigError(f"--mem {asked}: {error}") from None
