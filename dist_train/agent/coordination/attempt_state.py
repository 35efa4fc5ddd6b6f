"""What node 0 has received about one attempt; each has a new one, so that nothing of the last remains."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dist_train.agent.coordination.messages import Join
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure


@dataclass
class AttemptState:
    """The reports of one attempt, or the losses of a gathering.

    Attributes:
        number: of the attempt; None while nodes gather.
        members: node rank -> its Join, of the nodes that the attempt began with.
        done: node rank -> its ranks' exit codes.
        exited: rank -> node of the ranks that ended by themselves.
        exited_before_failure: the same when the first failure came.
        lost: node rank -> the failure that its loss is.
        stopped: nodes whose ranks have ended after a failure.
        settle_at: when the verdict is given at the latest.
    """

    number: int | None = None
    members: dict[int, Join] = field(default_factory=dict)
    done: dict[int, dict[str, int]] = field(default_factory=dict)
    exited: dict[int, int] = field(default_factory=dict)
    exited_before_failure: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    lost: dict[int, Failure] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    settle_at: float = 0.0

    def all_stopped(self, nodes: int) -> bool:
        """Whether no node has ranks at work any more."""
        return self.stopped | set(self.lost) >= set(range(nodes))

    def add(self, failures: list[Failure]) -> list[Failure]:
        """Add failures; return those that were not known."""
        known = {(f.rank, f.node_rank, f.cls) for f in self.failures}
        new = [f for f in failures if (f.rank, f.node_rank, f.cls) not in known]
        self.failures += new
        return new

    def complete(self, failure: Failure) -> Failure:
        """Add to an early exit what only node 0 knows: host and local rank."""
        if failure.cls != "early_exit" or failure.node_rank is None:
            return failure
        join = self.members.get(failure.node_rank)
        procs = join.procs if join else 1
        local_rank = None if failure.rank is None else failure.rank % procs
        return replace(failure, host=join.host if join else "", local_rank=local_rank)

    def loss_after(self, failure: Failure) -> Failure | None:
        """The first loss of a node, with the failure that came with it; None where no node was lost."""
        first = next(iter(self.lost.values()), None)
        if first is None or failure.cls == "node_lost":
            return first
        by = f"rank {failure.rank}: " if failure.rank is not None else ""
        return replace(
            first,
            message=f"{first.message}; in the same attempt {by}{failure.message or failure.cls}",
            secondary_failures=failure.secondary_failures,
        )


def lost_node(node: int, host: str, why: str) -> Failure:
    """The failure that the loss of a node is."""
    return Failure(
        source="dist-train",
        cls="node_lost",
        node_rank=node,
        host=host,
        exit_code=ExitCode.ATTEMPT_LOST,
        message=f"node {node} ({host}) is gone: {why}",
    )
