"""Kill any rank, any agent, the launcher, at any step, during a save: the same three hashes."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import WORKLOADS, Finished, begin, nothing_left, start, wait_for_step
from warm_commands.warm_launch import launch_cli

from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300), pytest.mark.xdist_group("same_bits")]
SHAPES = {"W=2": (1, 2), "W=3": (1, 3), "2x2": (2, 2)}
STEPS = 46  # both workloads
EVERY = 7


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """An undisturbed run of each workload and shape, trained once."""

    @functools.cache
    def run(workload: str, shape: str, *extra: str, overrides: tuple[str, ...] = ()) -> Finished:
        folder = tmp_path_factory.mktemp("undisturbed")
        finished = train(folder, "base", workload, shape, *extra, overrides=overrides)
        assert finished.cli.code == 0, finished.cli
        return finished

    return run


def train(
    folder: Path,
    name: str,
    workload: str,
    shape: str,
    *extra: str,
    overrides: Sequence[str] = (),
    timeout_s: float = 100,
) -> Finished:
    nodes, procs = SHAPES[shape]
    size = ("--nodes", nodes, "--gpus-per-node", procs, "--max-restarts", 25)
    config = WORKLOADS / f"{workload}.yaml"
    return start(folder, name, *size, *extra, config, *overrides, timeout_s=timeout_s)


def kills(seed: int, world_size: int, count: int, steps: int) -> list[tuple[int, int]]:
    """(rank, step), ascending by step; never a step with a save; rank 0 and the last rank included.

    At most two between two checkpoints: a third attempt without a newer step gives up (76), rightly.
    """
    random_ = random.Random(seed)
    places = []
    for window in range(EVERY, steps - EVERY, EVERY):
        places += random_.sample(range(window + 1, window + EVERY), 2)
    chosen = sorted(random_.sample(places, count))
    ranks = [0, world_size - 1, *(random_.randrange(world_size) for _ in range(count - 2))]
    random_.shuffle(ranks)
    return list(zip(ranks, chosen, strict=True))


COMBINATIONS = [("digits", "2x2", 2), ("digits", "W=3", 1), ("text", "W=3", 3), ("text", "2x2", 4)]


LONGER = [pytest.param(*words, marks=pytest.mark.proof) for words in COMBINATIONS[1:]]


# 4 x 5 = 20 seeded kills, each by SIGKILL.
@pytest.mark.proves(
    "Any kill, same bits: `kill -9` of ranks at 20 seeded (rank, step), during a save too; digits and "
    "a tied transformer with dropout, two loader workers",
    limits="3 ranks and 2 nodes x 2 ranks, three of the four runs by `make proof`; on CUDA only with "
    "`deterministic: same_world_size`, not run",
)
@pytest.mark.slow
@pytest.mark.parametrize(("workload", "shape", "seed"), [COMBINATIONS[0], *LONGER])
def test_ranks_killed_at_random_steps(  # type: ignore[no-untyped-def]
    tmp_path: Path, undisturbed, workload: str, shape: str, seed: int
) -> None:
    check_kills(tmp_path, undisturbed, workload, shape, seed, count=5, steps=STEPS)


@pytest.mark.proves(
    "Any kill, same bits: five `kill -9` of ranks where each parameter is spread over ranks (strategies fsdp "
    "and hsdp), during a save too",
    limits="3 ranks, and 2 nodes x 2 ranks with two copies of the model; on CPUs",
)
@pytest.mark.proof
@pytest.mark.parametrize(("strategy", "shape", "seed"), [("fsdp", "W=3", 5), ("hsdp", "2x2", 6)])
def test_ranks_killed_where_the_model_is_sharded(  # type: ignore[no-untyped-def]
    tmp_path: Path, undisturbed, strategy: str, shape: str, seed: int
) -> None:
    check_kills(
        tmp_path,
        undisturbed,
        "text",
        shape,
        seed,
        count=5,
        steps=STEPS,
        overrides=(f"strategy={strategy}", "trainer.callbacks=[{target: ema}]"),
    )


@pytest.mark.proves(
    "Any kill, same bits: five `kill -9` of ranks whose checkpoints are written while the training goes on, "
    "during a save too; the same bits as where each save is waited for",
    limits="ddp and fsdp, 3 ranks, on CPUs",
)
@pytest.mark.proof
@pytest.mark.parametrize(("strategy", "seed"), [("ddp", 7), ("fsdp", 8)])
def test_ranks_killed_beside_saves_in_the_background(  # type: ignore[no-untyped-def]
    tmp_path: Path, undisturbed, strategy: str, seed: int
) -> None:
    check_kills(
        tmp_path,
        undisturbed,
        "text",
        "W=3",
        seed,
        count=5,
        steps=STEPS,
        overrides=(f"strategy={strategy}",),
        of_the_killed=("checkpoint.async=true",),
    )


@pytest.mark.proves(
    "Any kill, same bits: five `kill -9` of ranks where layers are cut over ranks (strategies "
    "tensor_parallel and fsdp_tensor_parallel), during a save too",
    limits="2 nodes x 2 ranks; on CPUs",
)
@pytest.mark.proof
@pytest.mark.parametrize(
    ("overrides", "seed"),
    [
        (("strategy=tensor_parallel", "model.args.heads=4"), 7),
        (("strategy={name: fsdp_tensor_parallel, options: {tensor: 2}}",), 8),
    ],
    ids=["tensor_parallel", "fsdp_tensor_parallel"],
)
def test_ranks_killed_where_layers_are_cut(  # type: ignore[no-untyped-def]
    tmp_path: Path, undisturbed, overrides: tuple[str, ...], seed: int
) -> None:
    words = (*overrides, "trainer.callbacks=[{target: ema}]")
    check_kills(tmp_path, undisturbed, "text", "2x2", seed, count=5, steps=STEPS, overrides=words)


@pytest.mark.proves(
    "Any kill, same bits: five `kill -9` of ranks where the model is cut into stages (strategy pipeline), "
    "during a save too",
    limits="2 stages; 2 nodes x 2 ranks of 4 stages, and of 2 stages with 2 copies of each; on CPUs",
)
@pytest.mark.proof
@pytest.mark.parametrize(
    ("shape", "stage", "seed"), [("W=2", 2, 7), ("2x2", 4, 8), ("2x2", 2, 9)], ids=["2", "4", "2x2"]
)
def test_ranks_killed_where_the_model_is_cut_into_stages(  # type: ignore[no-untyped-def]
    tmp_path: Path, undisturbed, shape: str, stage: int, seed: int
) -> None:
    check_kills(
        tmp_path,
        undisturbed,
        "text",
        shape,
        seed,
        count=5,
        steps=STEPS,
        overrides=(
            "strategy=pipeline",
            f"strategy.stage={stage}",
            "trainer.accumulate=4",
            "trainer.callbacks=[{target: ema}]",
        ),
    )


@pytest.mark.proves(
    "Any kill, same bits: twenty `kill -9` of ranks in each of four runs",
)
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("workload", "shape", "seed"), COMBINATIONS)
def test_twenty_kills_each(tmp_path: Path, undisturbed, workload: str, shape: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    check_kills(tmp_path, undisturbed, workload, shape, seed, count=20, steps=138)


def check_kills(  # type: ignore[no-untyped-def]
    folder: Path,
    undisturbed,
    workload: str,
    shape: str,
    seed: int,
    count: int,
    steps: int,
    overrides: tuple[str, ...] = (),
    of_the_killed: tuple[str, ...] = (),
) -> None:
    nodes, procs = SHAPES[shape]
    length = (*overrides, *(() if steps == STEPS else (f"trainer.steps={steps}",)))
    planned = kills(seed, nodes * procs, count, steps)
    faults = [f"kill:rank={rank},step={step}" for rank, step in planned[:-1]]
    faults.append(f"kill:rank=0,step={planned[-1][1]},at=save")
    injected = f"DIST_TRAIN_INJECT={';'.join(faults)}"
    changes = (*length, *of_the_killed)
    killed = train(folder, "killed", workload, shape, "--env", injected, overrides=changes, timeout_s=600)
    assert killed.cli.code == 0, killed.cli
    assert killed.hashes == undisturbed(workload, shape, overrides=length).hashes
    assert len(killed.events("restarted")) == count
    failures = killed.events("first_failure")
    resumed = [event["resume_step"] for event in killed.events("attempt_started")[1:]]
    replayed = [(r, f["step"]) for r, f in zip(resumed, failures, strict=True)]
    assert all(r < step for r, step in replayed[:-1]), f"(resumed, killed): {replayed}"
    assert nothing_left(killed.run_id)


@pytest.mark.proof
def test_another_seed_gives_another_hash(tmp_path: Path, undisturbed) -> None:  # type: ignore[no-untyped-def]
    other = start(tmp_path, "other", "--gpus-per-node", 3, WORKLOADS / "text.yaml", "seed=1")
    assert other.cli.code == 0, other.cli
    assert not set(other.hashes) & set(undisturbed("text", "W=3").hashes)


@pytest.mark.proves(
    "The test of the same bits fails without the warm-up, with a global RNG in the loader, and when the "
    "sampler's position is saved in place of the trained one",
    limits="three mutants",
)
@pytest.mark.proof
@pytest.mark.parametrize(
    ("mutant", "workload"),
    [
        ("no_warm_up", "text"),
        ("rng_state_before_the_iterator", "digits"),
        ("position_of_the_sampler", "digits"),
    ],
)
def test_a_mutant_is_noticed(tmp_path: Path, undisturbed, mutant: str, workload: str) -> None:  # type: ignore[no-untyped-def]
    # Only a resume reads the position: in an undisturbed run that mutant has no effect.
    extra = () if mutant == "position_of_the_sampler" else ("--env", f"MUTANT={mutant}")
    base = undisturbed(workload, "W=3", *extra)
    killed = train(
        tmp_path,
        "killed",
        workload,
        "W=3",
        *("--env", f"MUTANT={mutant}"),
        *("--env", "DIST_TRAIN_INJECT=kill:rank=1,step=18"),
    )
    assert killed.cli.code == 0, killed.cli
    assert killed.hashes != base.hashes


def agent_pid(run: RunDir, node: int) -> int:
    """The agent's pid, by the run id in its environment; an agent has no RANK."""
    from dist_train.jobs.orphans import find_processes

    run_id = (read_json(run.job) or {})["spec"]["run_id"]
    for pid in find_processes(run_id, node):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if not any(word.startswith(b"RANK=") for word in words):
            return pid
    raise AssertionError(f"node {node} has no agent")


@pytest.mark.proves(
    "`kill -9` of the agent of either node: the run is resumed to the same bits",
    limits="two simulated nodes",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent(tmp_path: Path, undisturbed, node: int) -> None:  # type: ignore[no-untyped-def]
    run = RunDir(tmp_path / "runs" / "killed")
    command = begin(tmp_path, "killed", "--nodes", 2, "--gpus-per-node", 2, WORKLOADS / "digits.yaml")
    try:
        wait_for_step(run, 14)
        os.kill(agent_pid(run, node), signal.SIGKILL)
        assert command.wait(timeout=90) == 0, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    finished = Finished(None, run)  # type: ignore[arg-type]
    assert finished.hashes == undisturbed("digits", "2x2").hashes
    assert len(finished.events("restarted")) == 1
    assert nothing_left(finished.run_id)


@pytest.mark.proves(
    "`kill -9` of the launcher, then `dist-train resume`: the same bits",
)
@pytest.mark.proof
def test_a_killed_launcher_and_a_resume(tmp_path: Path, undisturbed) -> None:  # type: ignore[no-untyped-def]
    run = RunDir(tmp_path / "runs" / "killed")
    command = begin(tmp_path, "killed", "--nodes", 2, "--gpus-per-node", 2, WORKLOADS / "digits.yaml")
    try:
        wait_for_step(run, 14)
    finally:
        command.kill()
        command.wait()
    finished = Finished(None, run)  # type: ignore[arg-type]
    assert nothing_left(finished.run_id)
    resumed = launch_cli(["resume", "killed"], cwd=tmp_path, timeout_s=90)
    assert resumed.code == 0, resumed
    assert finished.hashes == undisturbed("digits", "2x2").hashes
    assert nothing_left(finished.run_id)
