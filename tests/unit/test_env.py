"""The environment: rank facts of every launcher, and what a worker inherits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_train.env import RankInfo, WorkerEnv, expand_hostlist, expand_tasks_per_node, scrub_for_worker
from dist_train.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "4",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
}
SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08],big",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def facts(environ: dict[str, str]) -> tuple[object, ...]:
    """rank, local rank, node rank, world size, local world size, nodes, address, port, source."""
    info = RankInfo.from_env(environ)
    return (
        *(info.rank, info.local_rank, info.node_rank, info.world_size, info.local_world_size, info.num_nodes),
        *(info.master_addr, info.master_port, info.source),
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 0, 0, 1, 1, 1, None, None, "single")),
        (TORCHRUN, (5, 1, 2, 8, 2, 4, "n0", 29500, "torchrun")),
        (SLURM, (3, 0, 2, 4, 1, 3, "gpu07", 20861, "slurm")),
        (SLURM | {"MASTER_PORT": "1234", "MASTER_ADDR": "x"}, (3, 0, 2, 4, 1, 3, "x", 1234, "slurm")),
        (OPENMPI, (3, 1, 1, 4, 2, 2, None, None, "openmpi")),
        (
            OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
            (3, 3, 0, 4, 4, 1, "127.0.0.1", None, "openmpi"),
        ),
        (PMI, (3, 1, 1, 4, 2, 2, None, None, "pmi")),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            (5, 1, 2, 8, 2, 4, None, None, "manual"),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 0, 0, 1, 1, 1, None, None, "manual")),
        (
            {"RANK": "2", "WORLD_SIZE": "4", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "job-0"},
            (2, 0, 2, 4, 1, 4, "job-0", None, "kubernetes"),
        ),
    ],
    ids=[
        "single",
        "torchrun",
        "slurm",
        "slurm-address",
        "openmpi",
        "openmpi-1-node",
        "pmi",
        "manual",
        "one",
        "pod",
    ],
)
def test_facts_by_launcher(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    assert facts(environ) == expected


def test_torchruns_variables_win_over_slurms_and_mpis() -> None:
    info = RankInfo.from_env({**SLURM, **OPENMPI, **TORCHRUN})
    assert (info.source, info.rank) == ("torchrun", 5)
    ignored = dict(info.ignored)
    assert ignored["SLURM_PROCID"] == "torchrun's variables win"
    assert ignored["OMPI_COMM_WORLD_RANK"] == "another launcher's variables came first"


@pytest.mark.parametrize(
    "step",
    [{"SLURM_STEP_ID": str(2**32 - 5)}, {"SLURM_STEP_ID": "4294967292"}, {"SLURM_STEP_ID": "batch"}, {}],
    ids=["batch", "extern", "a-name", "no-step"],
)
def test_outside_a_step_of_srun_slurms_variables_are_ignored(step: dict[str, str]) -> None:
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"} | step
    info = RankInfo.from_env(environ)
    assert (info.source, info.world_size) == ("single", 1)
    assert "not inside a step of srun" in dict(info.ignored)["SLURM_PROCID"]


def test_a_step_inside_mpirun_is_slurms_with_mpi_ignored() -> None:
    info = RankInfo.from_env({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"})
    assert info.source == "slurm"
    assert "PMI_RANK" in dict(info.ignored)


def _without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set but RANK=1 is"),
        ({"WORLD_SIZE": "4"}, "RANK is not set but WORLD_SIZE=4 is"),
        (_without(TORCHRUN, "LOCAL_RANK"), "LOCAL_RANK is not set but RANK=5 is"),
        (_without(TORCHRUN, "GROUP_WORLD_SIZE"), "GROUP_WORLD_SIZE is not set but GROUP_RANK=2 is"),
        (_without(SLURM, "SLURM_LOCALID"), "SLURM_LOCALID is not set but SLURM_PROCID=3 is"),
        (_without(SLURM, "SLURM_STEP_NUM_TASKS"), "SLURM_STEP_NUM_TASKS is not set"),
        (_without(OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"), "OMPI_COMM_WORLD_LOCAL_RANK is not"),
        (_without(OPENMPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set"),
        (_without(PMI, "PMI_SIZE"), "PMI_SIZE is not set but PMI_RANK=3 is"),
        # non-numbers
        (TORCHRUN | {"RANK": "five"}, "RANK='five' is not a whole number"),
        (TORCHRUN | {"WORLD_SIZE": ""}, "WORLD_SIZE='' is not a whole number"),
        (TORCHRUN | {"MASTER_PORT": "29500x"}, "MASTER_PORT='29500x' is not a whole number"),
        (SLURM | {"SLURM_PROCID": "1.0"}, "SLURM_PROCID='1.0' is not a whole number"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(y3)"}, "SLURM_STEP_TASKS_PER_NODE='2(y3)'"),
        # contradictions
        (TORCHRUN | {"RANK": "8"}, "rank 8 does not fit world size 8"),
        (TORCHRUN | {"RANK": "-1"}, "rank -1 does not fit world size 8"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "local rank 2 does not fit local world size 2"),
        (TORCHRUN | {"GROUP_RANK": "4"}, "node rank 4 does not fit number of nodes 4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "local world size 8 does not fit world size 8"),
        (SLURM | {"SLURM_PROCID": "4"}, "rank 4 does not fit world size 4"),
        (SLURM | {"SLURM_NODEID": "3"}, "node rank 3 does not fit number of nodes 3"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "local rank 2 does not fit local world size 2"),
    ],
)
def test_incomplete_or_contradictory_variables_are_an_error_with_name_and_value(
    environ: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        RankInfo.from_env(environ)
    assert text in caught.value.what
    assert caught.value.exit_code == 78


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 40)).filter(lambda pair: pair[0] > 0),
        min_size=1,
        max_size=8,
    )
)
def test_tasks_per_node_is_expanded(groups: list[tuple[int, int]]) -> None:
    text = ",".join(str(tasks) if nodes == 1 else f"{tasks}(x{nodes})" for tasks, nodes in groups)
    assert expand_tasks_per_node(text) == [tasks for tasks, nodes in groups for _ in range(nodes)]


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,6}-?", fullmatch=True),
            st.lists(st.tuples(st.integers(0, 500), st.integers(0, 8)), min_size=1, max_size=4),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_hostlists_expand_in_slurms_order(groups: list[tuple[str, list[tuple[int, int]], int]]) -> None:
    parts, hosts = [], []
    for prefix, ranges, width in groups:
        inner = []
        for low, more in ranges:
            inner.append(f"{low:0{width}d}" if more == 0 else f"{low:0{width}d}-{low + more:0{width}d}")
            # Slurm pads all numbers of a range to the width of its first.
            pad = len(f"{low:0{width}d}")
            hosts += [f"{prefix}{number:0{pad}d}" for number in range(low, low + more + 1)]
        parts.append(f"{prefix}[{','.join(inner)}]")
    assert expand_hostlist(",".join(parts)) == hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[1,3-4],x", ["n1", "n3", "n4", "x"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu[1-2].cluster.example", ["gpu1.cluster.example", "gpu2.cluster.example"]),
    ],
)
def test_hostlists(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


def test_all_tasks_of_a_step_compute_the_same_port_below_the_ephemeral_range() -> None:
    ports = {RankInfo.from_env(SLURM | {"SLURM_PROCID": str(n)}).master_port for n in range(4)}
    assert len(ports) == 1
    for job in range(0, 10**7, 99_991):
        port = RankInfo.from_env(SLURM | {"SLURM_JOB_ID": str(job)}).master_port
        assert port is not None
        assert 20000 <= port < 32000


def test_a_worker_does_not_inherit_the_agents_own_task() -> None:
    environ = {
        **SLURM,
        **OPENMPI,
        **PMI,
        "SLURM_CPU_BIND_TYPE": "mask",
        "SLURM_NTASKS_PER_NODE": "1",
        "PMIX_NAMESPACE": "x",
        "PALS_RANKID": "0",
        "SLURM_JOB_NODELIST": "a",
        "PATH": "/bin",
        "MY_SLURM_PROCID": "1",
    }
    left = scrub_for_worker(environ)
    for name in (
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS_PER_NODE",
    ):
        assert name not in left
    assert not [
        name for name in left if name.startswith(("PMI_", "PMIX_", "OMPI_", "PALS_", "SLURM_CPU_BIND"))
    ]
    assert {"PATH", "MY_SLURM_PROCID", "SLURM_JOB_NODELIST", "SLURM_JOB_ID"} <= set(left)


def test_the_workers_environment_reads_back_equal() -> None:
    settings = WorkerEnv("run-1", Path("/runs/a b"), 3, 1, 2, 12.5, Path("/x/stop"), "cuda", "file:///s/f", 4)
    assert WorkerEnv.from_env(settings.to_environ()) == settings
    bare = WorkerEnv("run-1", None, 0, 0, 1)
    assert WorkerEnv.from_env(bare.to_environ()) == bare


@pytest.mark.parametrize("environ", [{}, {"DIST_TRAIN_RUN_ID": "x"}, TORCHRUN])
def test_without_our_agent_there_is_nothing_to_read(environ: dict[str, str]) -> None:
    assert WorkerEnv.from_env(environ) is None


def test_a_broken_worker_environment_is_an_error() -> None:
    environ = WorkerEnv("run-1", None, 0, 0, 1).to_environ() | {"DIST_TRAIN_ATTEMPT": "zero"}
    with pytest.raises(ConfigError, match="DIST_TRAIN_ATTEMPT='zero'"):
        WorkerEnv.from_env(environ)
