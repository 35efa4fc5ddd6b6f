"""The agent chooses its ranks' CPUs and threads; each rank takes its own, or ends with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.coordination.messages import Join
from dist_train.agent.coordination.preflight_agreement import disagreement
from dist_train.agent.settings import Settings
from dist_train.agent.workers.bind_rank import bind_to_cpus
from dist_train.agent.workers.cpu_binding import choose_cpus
from dist_train.agent.workers.worker_environment import worker_environment
from dist_train.errors import ConfigError
from dist_train.jobs.agent_command import agent_argv, agent_environ
from dist_train.jobs.gpus import Gpu
from dist_train.jobs.spec import JobSpec, Target


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given to the agent; of a machine that tells nothing, so that each CPU is a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8, 16)))


def settings_of(folder: Path, bind: str, threads: int = 0, device: str = "cpu", nodes: int = 1) -> Settings:
    target = Target("script", "/train.py", (), "/")
    spec = JobSpec("a", "a-1", folder, target, nodes, 2, threads_per_rank=threads, bind=bind)
    environ = agent_environ(spec, "local", nodes - 1, "tcp://127.0.0.1:1", job="local.0")
    return replace(read_settings(agent_argv(spec, "python")[4:], environ), device=device)


def test_cores_and_threads_come_from_what_the_agent_was_given(tmp_path: Path) -> None:
    bound, line = choose_cpus(settings_of(tmp_path, "cores"), False, (), tmp_path)
    assert (bound.rank_cpus, bound.threads_per_rank) == (("8-11", "12-15"), 4)
    assert line == "node 0: CPUs by local rank (--bind cores): 0: 8-11, 1: 12-15; 4 threads per rank"


def test_a_number_of_threads_that_was_asked_for_stays(tmp_path: Path) -> None:
    bound, line = choose_cpus(settings_of(tmp_path, "8-9/10", threads=3), False, (), tmp_path)
    assert (bound.rank_cpus, bound.threads_per_rank) == (("8-9", "10"), 3)
    assert line.endswith("0: 8-9, 1: 10; 3 threads per rank; CPUs left free: 11-15")


def test_simulated_nodes_divide_the_machine_and_a_clusters_nodes_do_not(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "cores", nodes=2)
    assert choose_cpus(settings, True, (), tmp_path)[0].rank_cpus == ("12-13", "14-15")
    assert choose_cpus(settings, False, (), tmp_path)[0].rank_cpus == ("8-11", "12-15")


def test_later_attempts_keep_the_first_ones_number_of_threads(tmp_path: Path) -> None:
    """It is part of the bits: a requeue onto another machine, or --bind none, does not change it."""
    for attempt, threads in ((0, "16"), (2, "6")):
        (tmp_path / "attempts" / str(attempt)).mkdir(parents=True)
        record = {"threads_per_rank": threads}
        (tmp_path / "attempts" / str(attempt) / "fingerprint.json").write_text(json.dumps(record))
    (tmp_path / "attempts" / "10").mkdir()  # refused: it has no fingerprint
    bound, line = choose_cpus(settings_of(tmp_path, "cores"), False, (), tmp_path)
    assert bound.threads_per_rank == 6
    assert line.endswith("6 threads per rank, as in the attempt before (its cores would be 4)")
    assert choose_cpus(settings_of(tmp_path, "none"), False, (), tmp_path)[0].threads_per_rank == 6


def test_nothing_is_bound_and_nothing_said_by_default(tmp_path: Path) -> None:
    settings, line = choose_cpus(settings_of(tmp_path, "none", threads=2), True, (), tmp_path)
    assert (settings.rank_cpus, settings.threads_per_rank, settings.cannot_start, line) == ((), 2, "", "")
    assert not [
        word for word in agent_argv(JobSpec("a", "a", tmp_path, Target("script", "x")), "p") if "bind" in word
    ]


@pytest.mark.parametrize(
    ("bind", "why"),
    [
        ("0/8", "--bind gives local rank 0 CPUs that it may not have: 0; the batch system"),
        ("8", "--bind has 1 list(s) of CPUs, and each node has 2 rank(s)"),
        ("core", "--bind: expected none, cores, numa or the CPUs of each local rank"),
    ],
)
def test_what_does_not_fit_is_reported_to_node_0(tmp_path: Path, bind: str, why: str) -> None:
    settings, line = choose_cpus(settings_of(tmp_path, bind), False, (), tmp_path)
    assert settings.cannot_start.startswith(why)
    assert (settings.rank_cpus, line) == ((), "")


def test_ranks_are_placed_near_their_gpus(tmp_path: Path) -> None:
    """Two NUMA nodes, and the first visible GPU is at the second. Folders and GPUs are stand-ins."""
    for node, cpus in ((0, "8-11"), (1, "12-15")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
        card = tmp_path / f"sys/bus/pci/devices/0000:0{node}:00.0"
        card.mkdir(parents=True)
        (card / "numa_node").write_text(str(node))
    gpus = [Gpu(node, f"GPU-{node}", "Pretend", 0, 1, f"00000000:0{node}:00.0") for node in (1, 0)]
    on_gpus = settings_of(tmp_path, "cores", device="cuda")
    assert choose_cpus(on_gpus, False, gpus, tmp_path)[0].rank_cpus == ("12-15", "8-11")
    on_cpu = settings_of(tmp_path, "cores")
    assert choose_cpus(on_cpu, False, (), tmp_path)[0].rank_cpus == ("8-11", "12-15")


def test_a_ranks_environment_names_its_own_cpus_and_never_the_agents(tmp_path: Path) -> None:
    settings = replace(settings_of(tmp_path, "cores"), rank_cpus=("8-11", "12-15"))
    inherited = {env.CPUS: "0"}  # the agent's, launched inside a bound rank
    built = worker_environment(settings, inherited, 0, 1, 1, "127.0.0.1", 1)
    assert built[env.CPUS] == "12-15"
    assert env.CPUS not in worker_environment(
        settings_of(tmp_path, "none"), inherited, 0, 1, 1, "127.0.0.1", 1
    )


def test_a_rank_whose_cpus_have_gone_ends_with_78(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('not reached')")
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    done = subprocess.run(
        [*rank, str(tmp_path / "train.py")],
        env={**os.environ, env.CPUS: "4000-4001"},  # more than any kernel here has
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (78, ""), done
    assert "this rank cannot be bound to the CPUs 4000-4001" in done.stderr
    assert "resume it with --bind none" in done.stderr


def test_a_kernel_that_gives_fewer_cpus_without_an_error_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So Linux does where the control group has some of them."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)
    bind_to_cpus({env.CPUS: "8-15"})
    with pytest.raises(ConfigError, match="was to be bound to the CPUs 8-16, and the kernel gave it 8-15"):
        bind_to_cpus({env.CPUS: "8-16"})


def test_node_0_names_the_node_whose_ranks_cannot_be_bound() -> None:
    """Before the number of threads: without cores, there is none that the nodes could agree on."""
    fine = Join(0, "gpu1", 1, 2, "nonce", {"threads_per_rank": "4"}, cpus="0-3/4-7")
    unfit = Join(
        1, "gpu2", 2, 2, "nonce", {"threads_per_rank": "1"}, cannot_start="--bind 0/9: there is no 9"
    )
    assert disagreement({0: fine, 1: unfit}, "nonce") == "node 1 (gpu2): --bind 0/9: there is no 9"
    assert str(disagreement({1: unfit, 0: replace(unfit, node=0)}, "nonce")).startswith(
        "node 0 (gpu2) and 1 more: "
    )
    assert disagreement({0: fine, 1: replace(fine, node=1, cpus="8-15/0-7")}, "nonce") is None
