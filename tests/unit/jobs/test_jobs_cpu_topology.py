"""Cores, SMT siblings, NUMA nodes and the GPUs' nodes, read from folders that stand in for /sys."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_sysfs import machine

from dist_train.jobs.cores.cpu_topology import Core, machine_cpus, numa_node_of_gpu, read_cores


def test_siblings_are_one_core_and_nodes_come_in_order(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=2)
    assert read_cores(range(8), root) == (Core(0, (0, 4)), Core(0, (1, 5)), Core(1, (2, 6)), Core(1, (3, 7)))
    assert machine_cpus(root) == set(range(8))


def test_what_the_cpuset_leaves_out_is_in_no_core(tmp_path: Path) -> None:
    """Holes: one sibling of core 0, no CPU of core 1, and node 1's second core alone."""
    root = machine(tmp_path, nodes=2, cores_per_node=2)
    assert read_cores({4, 3, 7}, root) == (Core(0, (4,)), Core(1, (3, 7)))


def test_older_kernels_name_the_siblings_otherwise(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=1, cores_per_node=2)
    for cpu in range(4):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        (folder / "core_cpus_list").rename(folder / "thread_siblings_list")
    assert read_cores(range(4), root) == (Core(0, (0, 2)), Core(0, (1, 3)))


def test_without_sys_each_cpu_is_a_core_of_one_node(tmp_path: Path) -> None:
    assert read_cores({0, 5}, tmp_path) == (Core(0, (0,)), Core(0, (5,)))
    assert machine_cpus(tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("bus_id", "node"),
    [
        ("00000000:81:00.0", 1),  # as NVML writes it
        ("0000:81:00.0", 1),  # as sysfs does
        ("00000000:0F:00.0", 0),
        ("0001:01:00.0", None),  # a virtual machine: the firmware does not tell
        ("0000:99:00.0", None),  # not there
        ("", None),
        ("nonsense", None),
    ],
)
def test_the_numa_node_of_a_gpu(tmp_path: Path, bus_id: str, node: int | None) -> None:
    gpus = {"0000:0f:00.0": 0, "0000:81:00.0": 1, "0001:01:00.0": -1}
    root = machine(tmp_path, nodes=2, cores_per_node=2, gpus=gpus)
    assert numa_node_of_gpu(bus_id, read_cores(range(8), root), root) == node


def test_a_gpu_whose_node_has_no_usable_cpu_is_near_what_the_system_calls_local(tmp_path: Path) -> None:
    """Grace Hopper: the GPU's own memory is a NUMA node without a CPU."""
    root = machine(tmp_path, nodes=2, cores_per_node=2, gpus={"0009:01:00.0": 5})
    (root / "sys/bus/pci/devices/0009:01:00.0/local_cpulist").write_text("2-3,6-7\n")
    assert numa_node_of_gpu("00000009:01:00.0", read_cores(range(8), root), root) == 1
    assert numa_node_of_gpu("00000009:01:00.0", read_cores({0, 1}, root), root) is None
