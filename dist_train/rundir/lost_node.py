"""`control/lost-node-<job>`: a node whose agent has ended, written by the launcher that is its parent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dist_train.rundir.records import read_json, write_json_atomic


@dataclass(frozen=True)
class LostNode:
    """A node without an agent.

    Attributes:
        node: its rank.
        returncode: of its agent, as subprocess has it: negative for a signal.
    """

    node: int
    returncode: int

    def write(self, path: Path) -> None:
        """Write it for node 0."""
        write_json_atomic(path, {"node": self.node, "returncode": self.returncode})

    @classmethod
    def read(cls, path: Path) -> LostNode | None:
        """Read it; None while nothing was written."""
        record = read_json(path)
        return None if record is None else cls(int(record["node"]), int(record["returncode"]))

    @property
    def why(self) -> str:
        """How the agent ended, in words."""
        if self.returncode < 0:
            return f"its agent was killed by signal {-self.returncode}"
        return f"its agent left with exit code {self.returncode}"
