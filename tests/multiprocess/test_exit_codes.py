"""Exit codes are right, the root cause is named first, no process survives the run; all in bounded time."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from conftest import Finished, Launch, nothing_left

from dist_train.agent import timeouts
from dist_train.rundir.failure import read_failure

pytestmark = pytest.mark.multiprocess

SCRIPT = """
    import os, sys, time
    import torch, torch.distributed as dist

    def boom():
        raise ValueError("the true cause")

    dist.init_process_group("gloo")
    t = torch.ones(1)
    dist.all_reduce(t)
    if dist.get_rank() == int(sys.argv[2]):
        if sys.argv[1] == "raise":
            boom()
        if sys.argv[1] == "exit":
            sys.exit(int(sys.argv[3]))
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
        if sys.argv[1] == "size":
            t = torch.ones(1_000_000)
        if sys.argv[1] == "child":
            import subprocess
            subprocess.Popen(["sleep", "600"])
            os.kill(os.getpid(), 9)
    for _ in range(3):
        dist.all_reduce(t)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def run(launch: Launch, script: Path, *args: object, restarts: int = 0) -> Finished:
    finished = launch(
        "r", "--nodes", 2, "--gpus-per-node", 2, "--max-restarts", restarts, script, *args, timeout_s=60
    )
    assert finished.cli.seconds < timeouts.PROCESS_DEATH_S, finished.cli
    assert nothing_left(finished.run_id)
    return finished


def last_block(finished: Finished) -> str:
    """The failure block at the end of the output."""
    _, rule, rest = finished.cli.stderr.rpartition("\nFAILED:")
    assert rule, finished.cli
    return "FAILED:" + rest


def test_success(launch: Launch, script: Path) -> None:
    finished = run(launch, script, "none", -1)
    assert finished.cli.code == 0, finished.cli
    assert [e["exit_code"] for e in finished.events("finished")] == [0]


@pytest.mark.proves(
    "The report names rank, file and line of an exception, without a decorator",
)
def test_an_exception_names_rank_file_and_line_without_a_decorator(launch: Launch, script: Path) -> None:
    finished = run(launch, script, "raise", 1)
    assert finished.cli.code == 1, finished.cli
    block = last_block(finished)
    assert block.startswith("FAILED: rank 1 (node 0, local rank 1)")
    assert "ValueError: the true cause" in block
    assert f"{script}:6" in block
    assert "dist-train logs" in block
    failure = read_failure(finished.run)
    assert failure is not None
    assert (failure.rank, failure.cls, failure.exception, failure.line) == (1, "exception", "ValueError", 6)
    assert failure.log is not None
    assert "the true cause" in Path(failure.log).read_text()


@pytest.mark.proves(
    "A rank's exit code is the command's, `kill -9` is 137, within 15 s, and no process is left running",
    limits="local launcher",
)
@pytest.mark.parametrize(("rank", "code"), [(1, 3), (2, 41)])
def test_a_ranks_own_code_is_the_commands_code(launch: Launch, script: Path, rank: int, code: int) -> None:
    finished = run(launch, script, "exit", rank, code)
    assert finished.cli.code == code, finished.cli
    assert f"FAILED: rank {rank} " in last_block(finished)


def test_a_rank_on_its_way_out_is_the_cause_of_what_its_peer_tells_first(
    launch: Launch, tmp_path: Path
) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        textwrap.dedent("""
            import atexit, os, sys, time
            from pathlib import Path
            left = Path("left")

            def lose_connections():
                left.touch()
                time.sleep(0.3)

            if os.environ["RANK"] == "0":
                atexit.register(lose_connections)
                sys.exit(41)
            while not left.exists():
                time.sleep(0.01)
            raise ConnectionResetError("Connection reset by peer")
        """)
    )
    finished = launch("r", "--gpus-per-node", 2, script, timeout_s=60)
    assert finished.cli.code == 41, finished.cli
    assert "FAILED: rank 0 " in last_block(finished)
    failure = read_failure(finished.run)
    assert failure is not None
    assert failure.secondary_failures == (1,)


def test_a_rank_killed_by_9_gives_137(launch: Launch, script: Path) -> None:
    finished = run(launch, script, "kill", 3)
    assert finished.cli.code == 137, finished.cli
    assert "FAILED: rank 3 (node 1, local rank 1)" in last_block(finished)
    assert "signal 9 (SIGKILL)" in last_block(finished)


@pytest.mark.proves(
    "A rank that ends early with 0 is a failure",
    limits="when the others need that rank",
)
def test_an_early_exit_with_0_is_a_failure(launch: Launch, script: Path) -> None:
    finished = run(launch, script, "exit", 1, 0)
    assert finished.cli.code == 1, finished.cli
    assert "rank 1 left with exit code 0 while other ranks were still at work" in last_block(finished)
    failure = read_failure(finished.run)
    assert failure is not None
    assert failure.cls == "early_exit"


@pytest.mark.proves(
    "A killed rank's own children are ended",
    limits="Linux; those that kept the run id in their environment",
)
def test_child_processes_of_a_killed_rank_are_ended_too(launch: Launch, script: Path) -> None:
    assert run(launch, script, "child", 1).cli.code == 137


def test_a_crash_is_restarted_as_often_as_asked_and_an_exception_is_not(launch: Launch, script: Path) -> None:
    crashed = launch("c", "--gpus-per-node", 2, "--max-restarts", 1, script, "kill", 1, timeout_s=60)
    assert crashed.cli.code == 137, crashed.cli
    assert len(crashed.events("attempt_started")) == 2
    start = "attempt 2 goes on from the beginning (no checkpoint): rank 1 (node 0, local rank 1) on "
    [line] = [text for text in crashed.cli.stderr.splitlines() if start in text]
    assert "signal 9 (SIGKILL)" in line
    assert line.endswith("(restart 1 of 1)")
    raised = launch("e", "--gpus-per-node", 2, "--max-restarts", 3, script, "raise", 1, timeout_s=60)
    assert len(raised.events("attempt_started")) == 1


def test_arguments_after_the_script_are_passed_to_it(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "words.py"
    script.write_text("import sys, json; print(json.dumps(sys.argv[1:]))")
    finished = launch("w", script, "--nodes", 7, "-x", "a b", "--lr=0.1")
    assert json.loads(finished.cli.stdout) == ["--nodes", "7", "-x", "a b", "--lr=0.1"]
    assert "--nodes stands after" in finished.cli.stderr


def test_an_unseeded_script_has_distinct_seeds_on_its_ranks(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "seeds.py"
    script.write_text(
        "import os, random, numpy, torch\n"
        "seeds = [str(torch.initial_seed()), str(numpy.random.rand()), str(random.random())]\n"
        f"open({str(tmp_path)!r} + '/seed-' + os.environ['RANK'], 'w').write(' '.join(seeds))\n"
    )
    launch("s", "--gpus-per-node", 3, script)
    seeds = [(tmp_path / f"seed-{rank}").read_text().split() for rank in range(3)]
    for kind in zip(*seeds, strict=True):
        assert len(set(kind)) == 3


@pytest.mark.parametrize(
    "error",
    ["ConnectionRefusedError('connection refused: https://s3')", "BrokenPipeError(32, 'Broken pipe')"],
)
def test_a_network_error_of_the_users_own_is_not_restarted(
    launch: Launch, tmp_path: Path, error: str
) -> None:
    script = tmp_path / "upload.py"
    script.write_text(f"raise {error}\n")
    finished = launch("r", "--max-restarts", 3, script, timeout_s=60)
    assert finished.cli.code == 1, finished.cli
    assert len(finished.events("attempt_started")) == 1
    assert last_block(finished).startswith("FAILED: rank 0")


def test_an_abort_is_reported_with_the_words_of_gloo(launch: Launch, script: Path) -> None:
    finished = run(launch, script, "size", 1)
    block = last_block(finished)
    assert "killed by signal 6 (SIGABRT): [enforce fail at " in block.partition("\n")[0], finished.cli
    assert "op.preamble.length <= op.nbytes" in block.partition("\n")[0]
    assert "  hint    the ranks called one collective with tensors of unlike sizes" in block
    assert finished.cli.code == 134
