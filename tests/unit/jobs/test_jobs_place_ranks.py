"""Which CPUs each rank gets, for machines of several shapes. The machines are folders, not real ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_sysfs import machine
from hypothesis import given
from hypothesis import strategies as st

from dist_train.errors import ConfigError
from dist_train.jobs.cores import place_here as place_here_module
from dist_train.jobs.cores.cpu_topology import Core, read_cores
from dist_train.jobs.cores.place_here import NodeShape, place_here
from dist_train.jobs.cores.place_ranks import Placement, place_by_cores, place_by_lists, place_by_numa
from dist_train.rundir.cpu_list import cpu_list, parse_bind, parse_cpu_list

Allow = Callable[[str], None]
EIGHT_GPUS = {
    f"0000:{bus}:00.0": node for bus, node in zip(("0f", "2d", "44", "5b"), (0, 0, 0, 0), strict=True)
}
EIGHT_GPUS |= {f"0000:{bus}:00.0": 1 for bus in ("89", "a8", "c0", "d8")}


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Allow:
    """Choose what Slurm or a control group would have left to this process."""

    def choose(cpus: str) -> None:
        allowed = parse_cpu_list(cpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))

    return choose


def texts(placed: Placement) -> list[str]:
    return [cpu_list(cpus) for cpus in placed.cpus]


def shown(root: Path, bind: str, ranks: int, gpus: tuple[str, ...] = ()) -> list[str]:
    return texts(place_here(parse_bind(bind), NodeShape(ranks, gpu_bus_ids=gpus), root))


def test_two_sockets_with_smt(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=8)
    allow("0-31")
    assert shown(root, "cores", 4) == ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]
    assert shown(root, "numa", 4) == ["0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"]
    for bind in ("cores", "numa"):
        assert place_here(parse_bind(bind), NodeShape(4), root).threads == 4  # cores, not hardware threads


def test_fewer_ranks_than_numa_nodes_get_whole_nodes(tmp_path: Path, allow: Allow) -> None:
    """AMD's NPS4: four NUMA nodes on one socket."""
    root = machine(tmp_path, nodes=4, cores_per_node=4)
    allow("0-31")
    assert shown(root, "cores", 2) == ["0-7,16-23", "8-15,24-31"]
    assert shown(root, "numa", 2) == ["0-7,16-23", "8-15,24-31"]
    assert shown(root, "cores", 8)[:3] == ["0-1,16-17", "2-3,18-19", "4-5,20-21"]


def test_uneven_counts_leave_no_core_to_nobody_and_none_to_two(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=5, smt=1)
    allow("0-9")
    placed = place_here(parse_bind("cores"), NodeShape(3), root)
    assert (texts(placed), placed.threads, placed.notes) == (["0-1", "2-4", "5-9"], 2, ())


def test_a_cpuset_with_holes_is_divided_and_never_more(tmp_path: Path, allow: Allow) -> None:
    """Slurm gave cores 1, 2 of node 0 and core 7 of node 1: more ranks go where the cores are."""
    root = machine(tmp_path, nodes=2, cores_per_node=4)
    allow("1,2,9,10,15")
    placed = place_here(parse_bind("cores"), NodeShape(3), root)
    assert (texts(placed), placed.threads) == (["1,9", "2,10", "15"], 1)


def test_eight_gpus_of_two_numa_nodes_whatever_their_order(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=8, gpus=EIGHT_GPUS)
    allow("0-31")
    near = tuple(EIGHT_GPUS)
    assert shown(root, "cores", 8, near) == [
        *("0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23"),
        *("8-9,24-25", "10-11,26-27", "12-13,28-29", "14-15,30-31"),
    ]
    crossed = tuple(
        itertools.chain(*zip(near[4:], near[:4], strict=True))
    )  # CUDA_VISIBLE_DEVICES=4,0,5,1,...
    assert shown(root, "cores", 8, crossed)[:4] == ["8-9,24-25", "0-1,16-17", "10-11,26-27", "2-3,18-19"]
    assert shown(root, "numa", 2, (near[7], near[0])) == ["8-15,24-31", "0-7,16-23"]


def test_ranks_of_one_gpu_node_leave_the_others_cores_free_and_say_so(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=4, smt=1, gpus=EIGHT_GPUS)
    allow("0-7")
    placed = place_here(parse_bind("cores"), NodeShape(2, gpu_bus_ids=tuple(EIGHT_GPUS)[:2]), root)
    assert (texts(placed), placed.notes) == (["0-1", "2-3"], ("CPUs left free: 4-7",))


def test_gpus_whose_place_is_unknown_do_not_count_and_it_is_said(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=2, smt=1, gpus={"0000:01:00.0": -1, "0000:02:00.0": -1})
    allow("0-3")
    placed = place_here(parse_bind("cores"), NodeShape(2, gpu_bus_ids=("0000:01:00.0", "0000:02:00.0")), root)
    assert texts(placed) == ["0-1", "2-3"]
    assert placed.notes == ("the system does not tell which NUMA node is near which GPU",)


def test_a_gpus_node_with_too_few_usable_cores_is_not_crowded(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=8, smt=1, gpus=EIGHT_GPUS)
    allow("0,8-15")  # one core of node 0, where four GPUs are
    placed = place_here(parse_bind("cores"), NodeShape(4, gpu_bus_ids=tuple(EIGHT_GPUS)[:4]), root)
    assert placed.notes[0] == "NUMA node 0 has 1 usable core(s) for 4 ranks: not near their GPUs"
    assert len(set().union(*placed.cpus)) == sum(map(len, placed.cpus))


def test_more_ranks_than_cores_are_refused_with_both_numbers(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=1, cores_per_node=4)
    allow("0,4,1")  # two cores, three hardware threads
    with pytest.raises(ConfigError, match="3 ranks need 3 cores of their own, and 2 may be used here"):
        place_here(parse_bind("cores"), NodeShape(3), root)
    assert shown(root, "numa", 3) == ["0-1,4"] * 3  # shared, as asked


def test_simulated_nodes_divide_the_machine_together(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=2, cores_per_node=2, smt=1)
    allow("0-3")
    nodes = [place_here(parse_bind("cores"), NodeShape(2, here=2, index=i), root) for i in range(2)]
    assert [texts(node) for node in nodes] == [["0", "1"], ["2", "3"]]
    with pytest.raises(ConfigError, match="2 simulated nodes share this machine"):
        place_here(parse_bind("0/1"), NodeShape(2, here=2, index=1), root)


def test_simulated_nodes_are_not_near_their_gpus_and_it_is_said(tmp_path: Path, allow: Allow) -> None:
    """None of them knows which NUMA nodes the others' GPUs need."""
    root = machine(tmp_path, nodes=2, cores_per_node=2, smt=1, gpus=EIGHT_GPUS)
    allow("0-3")
    at_node_1 = tuple(EIGHT_GPUS)[4:6]
    nodes = [
        place_here(parse_bind("cores"), NodeShape(2, here=2, index=i, gpu_bus_ids=at_node_1), root)
        for i in range(2)
    ]
    assert [texts(node) for node in nodes] == [["0", "1"], ["2", "3"]]
    assert nodes[0].notes == ("simulated nodes do not know each other's GPUs: not near them",)


def test_lists_are_taken_as_written(tmp_path: Path, allow: Allow) -> None:
    root = machine(tmp_path, nodes=1, cores_per_node=4)
    allow("0-7")
    placed = place_here(parse_bind("0-1,4-5/2,6"), NodeShape(2), root)
    assert (texts(placed), placed.threads, placed.notes) == (["0-1,4-5", "2,6"], 1, ("CPUs left free: 3,7",))
    shared = place_here(parse_bind("0-3/0-3"), NodeShape(2), root)
    assert (shared.threads, shared.notes) == (2, ("CPUs of several ranks: 0-3",))


@pytest.mark.parametrize(
    ("lists", "what", "cause"),
    [
        ("0/1/2", r"--bind has 3 list\(s\) of CPUs, and each node has 2 rank\(s\)", None),
        ("0/64", "local rank 1 CPUs that it may not have: 64", "this machine has the CPUs 0-7"),
        ("0/3,7", "local rank 1 CPUs that it may not have: 7", "the batch system, the container or taskset"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    tmp_path: Path, allow: Allow, lists: str, what: str, cause: str | None
) -> None:
    root = machine(tmp_path, nodes=1, cores_per_node=4)
    allow("0-6")
    with pytest.raises(ConfigError, match=what) as refused:
        place_here(parse_bind(lists), NodeShape(2), root)
    assert cause is None or cause in str(refused.value.cause)


def test_a_cpu_quota_limits_the_threads(tmp_path: Path, allow: Allow) -> None:
    """A container of Kubernetes with `cpu: 4` sees all cores of the machine."""
    root = machine(tmp_path, nodes=2, cores_per_node=8, smt=1)
    for name, text in {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    allow("0-15")
    placed = place_here(parse_bind("cores"), NodeShape(2), root)
    assert (texts(placed), placed.threads) == (["0-7", "8-15"], 2)
    assert "a CPU quota of 4 cores limits the threads" in placed.notes[-1]


def test_a_system_that_cannot_bind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_here_module, "allowed_cpus", lambda: None)
    with pytest.raises(ConfigError, match="this system cannot bind processes to cores"):
        place_here(parse_bind("cores"), NodeShape(1))


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[Core, ...], int, list[int | None]]:
    cores = []
    for node in range(draw(st.integers(1, 5))):
        for number in range(draw(st.integers(0, 9))):
            first = node * 100 + number
            cores.append(Core(node, tuple(range(first, first + draw(st.integers(1, 2)) * 50, 50))))
    cores = cores or [Core(0, (0,))]
    ranks = draw(st.integers(1, 2 * len(cores)))
    nodes = sorted({core.numa_node for core in cores})
    near = draw(
        st.one_of(st.just([]), st.lists(st.sampled_from([*nodes, None]), min_size=ranks, max_size=ranks))
    )
    return tuple(cores), ranks, near


@given(machines())
def test_on_any_machine(case: tuple[tuple[Core, ...], int, list[int | None]]) -> None:
    """Every rank has whole cores; with `cores` its own; nobody has fewer than `threads` of them."""
    cores, ranks, near = case
    by_numa = place_by_numa(cores, ranks, near)
    if ranks > len(cores):
        with pytest.raises(ConfigError):
            place_by_cores(cores, ranks, near)
        placements = [by_numa]
    else:
        by_cores = place_by_cores(cores, ranks, near)
        assert sum(map(len, by_cores.cpus)) == len(frozenset().union(*by_cores.cpus))
        placements = [by_cores, by_numa]
        assert by_cores.threads == min(sum(core.cpus[0] in cpus for core in cores) for cpus in by_cores.cpus)
    for placed in placements:
        assert len(placed.cpus) == ranks
        for cpus in placed.cpus:
            whole = [core.cpus for core in cores if not cpus.isdisjoint(core.cpus)]
            assert cpus
            assert cpus == frozenset(itertools.chain(*whole))


def test_lists_need_no_knowledge_of_the_machine() -> None:
    cores = read_cores({0, 1}, Path("/nowhere"))
    assert place_by_lists(cores, 1, [frozenset({1})], frozenset()).cpus == (frozenset({1}),)
