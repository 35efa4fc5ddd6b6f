"""The local launcher answers the end of an agent that others cannot see: told, then ended, in 15 s."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dist_train.agent.timeouts import PROCESS_DEATH_S
from dist_train.rundir.lost_node import LostNode
from launchers._local import lost_agents
from launchers._local.lost_agents import LostAgents

STAYS = "sleep 60"


class Scene:
    """Stand-ins of agents, one per node, and short bounds."""

    def __init__(self, folder: Path, *commands: str) -> None:
        self.said: list[str] = []
        self.verdict, self.lost_node_file = folder / "verdict", folder / "lost-node"
        self.agents = [subprocess.Popen(["sh", "-c", f"exec {command}"]) for command in commands]
        self.lost = LostAgents(
            self.agents,
            self.verdict,
            self.lost_node_file,
            self.said.append,
            leave_s=0.3,
            node_zero_ends_s=0.6,
        )

    def watch(self, seconds: float) -> list[int | None]:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(agent.poll() is None for agent in self.agents):
            self.lost.check()
            time.sleep(0.01)
        return [agent.poll() for agent in self.agents]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(*commands: str) -> Scene:
        made.append(Scene(tmp_path, *commands))
        return made[-1]

    yield make
    for each in made:
        for agent in each.agents:
            agent.kill()
            agent.wait()


def test_the_bounds_are_within_that_of_a_dead_process() -> None:
    assert lost_agents._LEAVE_S < lost_agents._NODE_ZERO_ENDS_S < PROCESS_DEATH_S


def test_node_0_learns_of_a_killed_agent_and_what_stays_is_ended(scene: Callable[..., Scene]) -> None:
    found = scene(STAYS, "sh -c 'kill -9 $$'")
    assert found.watch(0.3) == [None, -9], "node 0 has time to end the attempt itself"
    assert LostNode.read(found.lost_node_file) == LostNode(1, -9)
    assert found.watch(5.0) == [-9, -9]
    assert found.said == ["node 0 did not leave by itself: killed"]
    assert found.lost.exit_code() == 137


def test_without_node_0_nobody_waits(scene: Callable[..., Scene]) -> None:
    found = scene("sh -c 'kill -9 $$'", STAYS, STAYS)
    assert found.watch(5.0) == [-9, -9, -9]
    assert not found.lost_node_file.exists()
    assert found.lost.exit_code() == 137


def test_after_a_verdict_nobody_is_lost(scene: Callable[..., Scene]) -> None:
    found = scene("sleep 0.4", "sh -c 'exit 3'")
    found.verdict.write_text("3\n")
    assert found.watch(5.0) == [0, 3]
    assert (found.lost_node_file.exists(), found.lost.first) == (False, None)


def test_an_agent_that_leaves_with_a_code_of_its_own_gives_it(scene: Callable[..., Scene]) -> None:
    found = scene(STAYS, "sh -c 'exit 78'")
    assert found.watch(5.0) == [-9, 78]
    assert found.lost.exit_code() == 78


def test_agents_at_work_are_left_alone(scene: Callable[..., Scene]) -> None:
    assert scene(STAYS, STAYS).watch(1.0) == [None, None]
