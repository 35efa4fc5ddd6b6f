"""Kills for memory between two readings of made-up control groups (real ones: test_out_of_memory)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.jobs.memory_kills import (
    kills_between,
    limit_owner,
    read_memory,
    twice,
    without_cause,
)

GIB = 1 << 30
STEP = "system.slice/slurmstepd.scope/job_12/step_0"
POD = "kubepods.slice/kubepods-pod1.slice/cri-1.scope"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, group: str, point_root: str = "/", host_kills: int = 7) -> Path:
    """A machine with version 2, whose root counts nothing."""
    line = f"30 24 0:26 {point_root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    return write(
        root,
        {
            "proc/self/cgroup": f"0::/{group}\n",
            "proc/self/mountinfo": line,
            "proc/vmstat": f"nr_free_pages 1\noom_kill {host_kills}\n",
            "proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\n",
        },
    )


def group(
    root: Path, path: str, kills: int, reached: int, limit: int | None, peak: int | None = None
) -> None:
    events = f"low 0\nhigh 0\nmax 99\noom {reached}\noom_kill {kills}\noom_group_kill 0\n"
    folder = f"sys/fs/cgroup/{path}"
    files = {f"{folder}/memory.events": events, f"{folder}/memory.max": f"{limit or 'max'}\n"}
    if peak is not None:
        files[f"{folder}/memory.peak"] = f"{peak}\n"
    write(root, files)


def test_the_limit_of_the_group_that_was_reached_is_named(tmp_path: Path) -> None:
    """Slurm limits the job and not the step; version 2 counts in every group above too."""
    root = machine(tmp_path, STEP)
    job, above = STEP.rpartition("/")[0], "system.slice"
    for path, limit in ((STEP, None), (job, 4 * GIB), (above, 8 * GIB)):
        group(root, path, 3, 2, limit)
    before = read_memory(root)
    group(root, STEP, 4, 2, None)
    group(root, job, 4, 3, 4 * GIB, 4 * GIB)
    group(root, above, 4, 3, 8 * GIB)
    kill = kills_between(before, read_memory(root))
    assert kill is not None
    assert (kill.count, kill.limit, kill.peak, kill.is_own) == (1, 4 * GIB, 4 * GIB, True)
    file = root / "sys/fs/cgroup" / job / "memory.max"
    assert str(kill) == f"out of memory at the limit of 4.0 GiB of Slurm job 12 ({file}, peak 4.0 GiB)"


def test_a_kill_elsewhere_under_the_same_limit_is_none_of_ours(tmp_path: Path) -> None:
    root = machine(tmp_path, STEP)
    job = STEP.rpartition("/")[0]
    group(root, STEP, 0, 0, None)
    group(root, job, 0, 0, 4 * GIB)
    before = read_memory(root)
    group(root, job, 1, 1, 4 * GIB)
    machine(root, STEP, host_kills=8)
    assert kills_between(before, read_memory(root)) is None


def test_a_kill_without_a_reached_limit_is_the_hosts_or_one_above(tmp_path: Path) -> None:
    """In a container the groups above its own cannot be seen."""
    root = machine(tmp_path, "", point_root=f"/{POD}")
    group(root, "", 0, 0, 2 * GIB)
    before = read_memory(root)
    group(root, "", 1, 0, 2 * GIB)
    kill = kills_between(before, read_memory(root))
    assert kill is not None
    assert kill.limit is None
    assert (
        str(kill)
        == "out of memory: of the host, which has 16.0 GiB, or at a limit that cannot be seen from here"
    )


def test_where_no_group_counts_the_machines_count_is_not_certain(tmp_path: Path) -> None:
    root = machine(tmp_path, "")
    before = read_memory(root)
    assert not before.counts_own_kills
    assert kills_between(before, read_memory(root)) is None
    machine(root, "", host_kills=8)
    kill = kills_between(before, read_memory(root))
    assert kill is not None
    assert not kill.is_own
    assert str(kill).startswith("perhaps out of memory: the kernel of this host killed a process")


def test_version_1_counts_in_the_own_group_only(tmp_path: Path) -> None:
    root = machine(tmp_path, "")
    mount = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    own, job = "sys/fs/cgroup/memory/slurm/job_7/step_0", "sys/fs/cgroup/memory/slurm/job_7"
    write(root, {"proc/self/cgroup": "5:memory:/slurm/job_7/step_0\n0::/\n", "proc/self/mountinfo": mount})

    def count(folder: str, kills: int, failed: int, limit: int) -> None:
        control = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        files = {"memory.oom_control": control, "memory.failcnt": f"{failed}\n"}
        files |= {"memory.limit_in_bytes": f"{limit}\n", "memory.max_usage_in_bytes": f"{GIB}\n"}
        write(root, {f"{folder}/{name}": text for name, text in files.items()})

    count(own, 0, 0, 1 << 62)
    count(job, 0, 5, 3 * GIB)
    before = read_memory(root)
    count(own, 2, 0, 1 << 62)
    count(job, 0, 9, 3 * GIB)
    kill = kills_between(before, read_memory(root))
    assert kill is not None
    assert (kill.count, kill.limit, kill.peak) == (2, 3 * GIB, GIB)


def test_nothing_to_read_is_nothing_known(tmp_path: Path) -> None:
    reading = read_memory(tmp_path)
    assert (reading.groups, reading.host_kills) == ((), None)
    assert kills_between(reading, reading) is None


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", "Slurm job 12, step 0"),
        ("/sys/fs/cgroup/memory/slurm/uid_0/job_7", "Slurm job 7"),
        ("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/x.slice", "its pod"),
        ("/sys/fs/cgroup/user.slice/user-1000.slice", "systemd's user-1000.slice"),
        ("/sys/fs/cgroup", "its control group"),
    ],
)
def test_whose_limit_it_is(path: str, owner: str) -> None:
    assert limit_owner(Path(path)) == owner


def test_twice_a_limit_is_a_mem_that_both_launchers_take() -> None:
    assert [twice(amount) for amount in (GIB, 700 << 20, 1)] == ["2G", "1400M", "1M"]


@pytest.mark.parametrize(
    "message",
    [
        "killed by signal 9 (SIGKILL) (often the kernel's out-of-memory killer: see `dmesg`)",
        "killed by signal 9 (SIGKILL): out of memory at the limit of 2.0 GiB of its pod (/s (1), peak 2 GiB)",
        "killed by signal 9 (SIGKILL): perhaps out of memory: the kernel (`dmesg` names it)",
        "killed by signal 9 (SIGKILL)",
    ],
)
def test_a_message_without_the_words_on_the_cause(message: str) -> None:
    assert without_cause(message) == "killed by signal 9 (SIGKILL)"
