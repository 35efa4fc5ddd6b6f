"""Our RendezvousHandler (torch's public interface): nodes keep the rank that their launcher gave.

Torch's own handlers do not fit: the static one never tells peers of a failure and reuses its
store, the c10d one orders nodes by address, cannot say who is missing, and unpickles what it finds
in an unauthenticated store.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as torch_dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from dist_train.agent.link import Link
from dist_train.agent.messages import Join, Start


class AttemptOver(Exception):
    """No (further) attempt begins: the verdict is in the link, or node 0 is lost."""


class NodeRendezvous(RendezvousHandler):
    """Joins the next attempt through the link to node 0.

    Args:
        join: makes this node's Join, anew for each attempt.
        on_start: called with what node 0 answered, before any rank starts.
    """

    def __init__(
        self,
        link: Link,
        run_id: str,
        node: int,
        nodes: int,
        join: Callable[[], Join],
        on_start: Callable[[Start], None],
    ) -> None:
        self._link = link
        self._run_id = run_id
        self._node = node
        self._nodes = nodes
        self._join = join
        self._on_start = on_start

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes; raises AttemptOver when the run ends instead.

        The wait is bounded by node 0, which knows who is missing, and by the link's heartbeat.
        """
        self._link.begin_round()
        self._link.send(self._join())
        self._link.wait(lambda: self._link.start is not None or self._link.verdict is not None)
        start = self._link.start
        if start is None:
            raise AttemptOver
        self._on_start(start)
        # Ranks get a store of their own per attempt (torch adds no attempt prefix to its keys); this
        # one is the agent's, whose ranks are assigned without it (TORCH_ELASTIC_WORKER_IDENTICAL).
        return RendezvousInfo(
            torch_dist.HashStore(),  # type: ignore[attr-defined]  # torch lists it in no __all__
            self._node,
            self._nodes,
            RendezvousStoreInfo(start.master_addr, start.master_port),
        )

    def get_backend(self) -> str:
        """The name in torch's events."""
        return "dist-train"

    @property
    def use_agent_store(self) -> bool:
        """Agent 0 hosts the ranks' store, so that a killed rank 0 does not take it along."""
        return True

    def is_closed(self) -> bool:
        """Whether no further attempt will begin."""
        return self._link.verdict is not None and self._link.verdict.action == "exit"

    def set_closed(self) -> None:
        """Node 0 alone ends the run."""

    def num_nodes_waiting(self) -> int:
        """No node joins a running attempt."""
        return 0

    def get_run_id(self) -> str:
        """The run id, for TORCHELASTIC_RUN_ID."""
        return self._run_id

    def shutdown(self) -> bool:
        """The agent closes the link itself."""
        return True
