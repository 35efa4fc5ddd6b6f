"""What follows when an agent of this machine ends: its launcher, the parent of all, knows it first.

Node 0 sees a lost agent by its connection, but only once that agent has connected; and an agent that
looks for node 0 cannot know that it has gone. So the launcher tells node 0 (control/lost-node-<job>),
and ends what is left a bound later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dist_train.errors import ExitCode
from dist_train.prewarm.agent_handle import AgentProcess
from dist_train.rundir.lost_node import LostNode

# Agents that have joined learn of an end at once and need some two seconds to leave; all must have left
# within the 15 s of agent.timeouts.PROCESS_DEATH_S.
_LEAVE_S = 5.0
_NODE_ZERO_ENDS_S = 10.0


class LostAgents:
    """Watches the agents of one start.

    Args:
        agents: by node rank.
        verdict: the file that holds node 0's verdict, once there is one.
        lost_node_file: where node 0 looks for a lost node.
        note: prints a line for the user.
    """

    def __init__(
        self,
        agents: Sequence[AgentProcess],
        verdict: Path,
        lost_node_file: Path,
        note: Callable[[str], None],
        leave_s: float = _LEAVE_S,
        node_zero_ends_s: float = _NODE_ZERO_ENDS_S,
    ) -> None:
        self._agents = agents
        self._verdict = verdict
        self._lost_node_file = lost_node_file
        self._say = note
        self._leave_s = leave_s
        self._node_zero_ends_s = node_zero_ends_s
        self._kill_at: float | None = None
        self.first: int | None = None  # the first agent that was lost

    def check(self) -> None:
        """Tell node 0 of an agent that has ended before a verdict; end those that then stay."""
        ended = [node for node, agent in enumerate(self._agents) if agent.poll() is not None]
        if len(ended) == len(self._agents):
            return
        now = time.monotonic()
        if 0 in ended:
            self._note(0)
            self._kill_by(now + self._leave_s)
        elif self.first is None and (lost := self._lost(ended)) is not None:
            self._note(lost)
            LostNode(lost, self._agents[lost].returncode).write(self._lost_node_file)
            self._kill_by(now + self._node_zero_ends_s)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _lost(self, ended: Sequence[int]) -> int | None:
        if self._verdict.exists():
            return None
        return next((node for node in ended if self._agents[node].returncode != 0), None)

    def _note(self, node: int) -> None:
        code = self._agents[node].returncode
        if self.first is None and code != 0 and not self._verdict.exists():
            self.first = node
            if code < 0 and node == 0:
                # The others only see that nobody answers.
                self._say(f"node 0's agent was killed by signal {-code}: node 0 is lost")

    def _kill_by(self, when: float) -> None:
        self._kill_at = when if self._kill_at is None else min(self._kill_at, when)

    def _kill(self) -> None:
        left = [node for node, agent in enumerate(self._agents) if agent.poll() is None]
        for node in left:
            self._agents[node].kill()
        if left:
            names = ", ".join(f"node {node}" for node in left)
            was = "waited for node 0, which has ended" if 0 not in left else "did not leave by itself"
            self._say(f"{names} {was}: killed")
        self._kill_at = None

    def exit_code(self) -> int:
        """Return the exit code that the loss stands for, as a shell has it."""
        code = None if self.first is None else self._agents[self.first].returncode
        if code is None or code in (0, ExitCode.ATTEMPT_LOST):
            return int(ExitCode.UNAVAILABLE)
        return 128 - code if code < 0 else code
