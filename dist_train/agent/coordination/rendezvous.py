"""Our RendezvousHandler (torch's public interface): nodes keep the rank that their launcher gave.

Torch's own handlers do not fit: the static one never informs peers of a failure and reuses its store,
the c10d one orders nodes by address, cannot name the missing nodes, and unpickles what it finds in an
unauthenticated store.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as torch_dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.messages import Join, Start


class AttemptOver(Exception):
    """No (further) attempt begins: the client has the verdict, or node 0 is lost."""


class NodeRendezvous(RendezvousHandler):
    """Joins the next attempt through the connection to node 0.

    Args:
        join: builds this node's Join, for each attempt.
        on_start: called with node 0's answer, before any rank starts.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        run_id: str,
        node: int,
        nodes: int,
        join: Callable[[], Join],
        on_start: Callable[[Start], None],
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._node = node
        self._nodes = nodes
        self._join = join
        self._on_start = on_start

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes; raises AttemptOver when the run ends instead.

        The wait is bounded by node 0, which knows who is missing, and by the connection's heartbeat.
        """
        self._client.begin_attempt()
        if not self._client.is_over:
            self._client.send(self._join())
        # A verdict that orders a restart is the last attempt's, and this node has obeyed it.
        self._client.wait(lambda: self._client.start is not None or self._client.is_over)
        start = self._client.start
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
        """Return the name in torch's events."""
        return "dist-train"

    @property
    def use_agent_store(self) -> bool:
        """True: agent 0 hosts the ranks' store, which so survives rank 0."""
        return True

    def is_closed(self) -> bool:
        """Whether no further attempt will begin."""
        return self._client.is_over

    def set_closed(self) -> None:
        """Do nothing: node 0 alone ends the run."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no node joins a running attempt."""
        return 0

    def get_run_id(self) -> str:
        """Return the run id, for TORCHELASTIC_RUN_ID."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing: the node closes the connection itself."""
        return True
