"""NOT a real machine's: folders with the files of /sys that describe cores, NUMA nodes and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dist_train.rundir.cpu_list import cpu_list


def machine(
    root: Path, nodes: int, cores_per_node: int, smt: int = 2, gpus: Mapping[str, int] | None = None
) -> Path:
    """Write a machine whose CPUs are numbered as Linux does: first threads of all cores, then their siblings.

    Args:
        gpus: PCI address -> NUMA node (-1: the firmware does not tell).
    """
    cores = nodes * cores_per_node
    near: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for core in range(cores):
        siblings = [core + thread * cores for thread in range(smt)]
        near[core // cores_per_node] += siblings
        for cpu in siblings:
            _write(root, f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list", cpu_list(siblings))
    _write(root, "devices/system/cpu/present", cpu_list(range(cores * smt)))
    for node, cpus in near.items():
        _write(root, f"devices/system/node/node{node}/cpulist", cpu_list(cpus))
    for address, node in (gpus or {}).items():
        _write(root, f"bus/pci/devices/{address}/numa_node", str(node))
        local = near.get(node) or range(cores * smt)
        _write(root, f"bus/pci/devices/{address}/local_cpulist", cpu_list(local))
    return root


def _write(root: Path, name: str, text: str) -> None:
    path = root / "sys" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
