"""Two losses in a row, with real processes: the second one is answered as soon as the first."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Finished, begin, nothing_left, wait_for
from run_processes import agents, ranks

from dist_train.agent import timeouts
from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess
# The first attempt lasts until something is killed, the next ones for a while.
SCRIPT = """
import os, time
time.sleep(120 if int(os.environ["DIST_TRAIN_ATTEMPT"]) < {short_from} else 2)
print("done")
"""
# From a loss to the end of the run: the answer, another start of all agents under load, the script.
AGAIN_S = 75.0
SEED = 19


class LiveRun:
    """A run of 2 x 2 in the background, and its processes."""

    def __init__(self, folder: Path, short_from: int, new_interpreter: bool) -> None:
        (folder / "train.py").write_text(SCRIPT.format(short_from=short_from))
        self.run = RunDir(folder / "runs" / "killed")
        self._out = folder / "out.txt"
        words = ("--nodes", 2, "--gpus-per-node", 2, folder / "train.py")
        self.command = begin(folder, "killed", *words, new_interpreter=new_interpreter)

    @property
    def text(self) -> str:
        return self._out.read_text()

    def rank(self, number: int) -> int | None:
        return ranks(self.run).get(number)

    def agent(self, node: int) -> int | None:
        return agents(self.run).get(node)

    def ranks_work(self) -> bool:
        return len(ranks(self.run)) == 4

    def events(self, kind: str) -> int:
        return len(Finished(None, self.run).events(kind))  # type: ignore[arg-type]

    def ends_well(self, within_s: float) -> None:
        assert self.command.wait(timeout=within_s) == 0, self.text
        assert nothing_left(Finished(None, self.run).run_id)  # type: ignore[arg-type]


@contextmanager
def live_run(folder: Path, short_from: int = 1, new_interpreter: bool = False) -> Iterator[LiveRun]:
    """Run it; with new interpreters a kill may also meet an import of torch."""
    live = LiveRun(folder, short_from, new_interpreter)
    try:
        wait_for(live.ranks_work, "four ranks")
        yield live
    finally:
        live.command.kill()
        live.command.wait()


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    if pid is not None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


@pytest.mark.proof
@pytest.mark.proves(
    "a rank is killed, then an agent before it has rejoined: all nodes are started again, within 15 s",
    limits="two simulated nodes",
)
@pytest.mark.slow
def test_an_agent_that_is_killed_before_it_has_rejoined_is_answered(tmp_path: Path) -> None:
    with live_run(tmp_path) as live:
        agent = live.agent(1)
        kill(agent, signal.SIGSTOP)  # so that it cannot rejoin
        kill(live.rank(0))
        wait_for(lambda: live.events("restarted") == 1, "the restart", within_s=20)
        kill(agent)
        killed_at = time.monotonic()
        wait_for(lambda: "starting all nodes again" in live.text, "a new start", timeouts.PROCESS_DEATH_S)
        assert "did not leave by itself" not in live.text, (
            f"{time.monotonic() - killed_at:.0f} s\n{live.text}"
        )
        live.ends_well(AGAIN_S)


@pytest.mark.proves(
    "a rank is killed, and another host falls silent: all nodes are started again, within 60 s",
    limits="two simulated nodes; the silent host is a stopped agent",
)
@pytest.mark.proof
@pytest.mark.slow
def test_a_host_that_falls_silent_while_the_others_rejoin_is_answered(tmp_path: Path) -> None:
    """The heartbeat is missed only once all other nodes wait for this one."""
    with live_run(tmp_path) as live:
        kill(live.agent(1), signal.SIGSTOP)
        kill(live.rank(0))
        wait_for(lambda: live.events("restarted") == 1, "the restart", within_s=20)
        wait_for(lambda: "starting all nodes again" in live.text, "a new start", timeouts.HOST_DEATH_S)
        live.ends_well(AGAIN_S)


@pytest.mark.proves(
    "two `kill -9` of random ranks or agents, 0 to 4 s apart: the run ends well",
    limits="two simulated nodes",
)
@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_two_random_kills_are_answered(tmp_path: Path, number: int) -> None:
    rng = random.Random(SEED + number)
    with live_run(tmp_path, new_interpreter=True) as live:
        for _ in range(2):
            pid = live.rank(rng.randrange(4)) if rng.random() < 0.5 else live.agent(rng.randrange(2))
            kill(pid)
            time.sleep(rng.uniform(0.0, 4.0))
        live.ends_well(AGAIN_S + timeouts.PROCESS_DEATH_S)
        # An agent that still looks for a node 0 that was killed cannot know that: its launcher ends it.
        assert "node 0 did not leave by itself" not in live.text, live.text
