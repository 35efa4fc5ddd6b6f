"""Cores and memory that may really be used: affinity, and the control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dist_train.jobs.cgroups import cpu_quota, memory_limit
from dist_train.jobs.machine import look, shared_memory_bytes, usable_cores, usable_memory

GIB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder with the files of / that are read."""
    for name, text in {"proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/user.slice/job_7\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "sys/fs/cgroup/user.slice/job_7/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/job_7/memory.max": "max\n",
}
V1 = {
    "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
    # As in a container: the group's own folder is what is mounted.
    "proc/self/mountinfo": (
        "30 24 0:26 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    ),
}


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_nothing_limits(tmp_path: Path) -> None:
    root = system(tmp_path, V2)
    assert (usable_cores(root).amount, usable_cores(root).reason) == (8, "all cores of the machine")
    assert (usable_memory(root).amount, usable_memory(root).machine) == (16 * GIB, 16 * GIB)


def test_a_quota_and_a_limit_of_version_2(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/user.slice/job_7"
    root = system(tmp_path, {**V2, f"{job}/cpu.max": "250000 100000\n", f"{job}/memory.max": f"{4 * GIB}\n"})
    cores, memory = usable_cores(root), usable_memory(root)
    assert (cores.amount, cores.machine) == (2, 8)
    assert cores.reason == f"CPU quota of 2.5 cores ({root / job / 'cpu.max'})"
    assert (memory.amount, memory.machine) == (4 * GIB, 16 * GIB)
    assert str(root / job / "memory.max") in memory.reason


def test_the_limit_of_a_group_above_holds_too(tmp_path: Path) -> None:
    root = system(tmp_path, {**V2, "sys/fs/cgroup/user.slice/memory.max": f"{2 * GIB}\n"})
    assert usable_memory(root).amount == 2 * GIB


def test_a_quota_and_a_limit_of_version_1(tmp_path: Path) -> None:
    limits = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
    }
    root = system(tmp_path, V1 | limits)
    assert (usable_cores(root).amount, usable_memory(root).amount) == (3, GIB)


def test_version_1_has_numbers_for_no_limit(tmp_path: Path) -> None:
    limits = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    root = system(tmp_path, V1 | limits)
    assert (cpu_quota(root), memory_limit(root)) == (None, None)


def test_half_a_core_is_one(tmp_path: Path) -> None:
    root = system(tmp_path, {**V2, "sys/fs/cgroup/user.slice/job_7/cpu.max": "50000 100000\n"})
    assert usable_cores(root).amount == 1


def test_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5})
    cores = usable_cores(system(tmp_path, V2))
    assert (cores.amount, cores.reason) == (2, "this process is bound to 2 of 8 cores (affinity)")


def test_this_machine_answers() -> None:
    machine = look()
    assert 1 <= machine.cores.amount <= machine.cores.machine
    assert machine.memory.amount > 0
    assert shared_memory_bytes("/no/such/folder") is None
