"""The first rank of each node: its facts, its connections, and what it sees of node 0's files.

Nodes tell each other by files in doctor/ of the run directory: what is measured here must not need the
network that it measures.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from dist_train.cluster_check.node_facts import read_node
from dist_train.cluster_check.node_listener import NodeListener, shared_file
from dist_train.cluster_check.peer_probe import look_at_shared_files, probe
from dist_train.doctor.facts import NodeFacts, PeerFacts, SharedFileFacts
from dist_train.errors import UnavailableError
from dist_train.rundir.records import read_json, write_json_atomic

M = TypeVar("M", bound=BaseModel)
_POLL_S = 0.05
_POLL_PER_NODE_S = 0.001  # so that many nodes do not keep a file server busy
_ALL_PAIRS = 16  # of more nodes each connects to node 0 and to two others
# For another node's facts: its first rank may import torch from a cold disk before it has them.
_FACTS_S = 180.0


class NodeRecord(BaseModel):
    """What a node has measured of the others."""

    peers: tuple[PeerFacts, ...] = ()
    shared_file: SharedFileFacts | None = None


class NodeCheck:
    """The check of one node.

    Args:
        folder: doctor/ of the run directory.
        start: what names this attempt, so that files of an earlier one do not count.
        emit: takes each fact on node 0.
    """

    def __init__(
        self,
        node: int,
        nodes: int,
        device: str,
        folder: Path,
        start: str,
        environ: Mapping[str, str],
        emit: Callable[[BaseModel], None],
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._node, self._nodes = node, nodes
        self._folder, self._start = folder, start
        self._emit = emit
        # The run directory is readable by its owner alone.
        self._secret = hashlib.sha256(f"{folder}{start}".encode() + _key(folder)).hexdigest()
        self._listener = NodeListener(self._secret, folder)
        self._own = read_node(node, device, folder, environ, self._listener.port)

    def run(self) -> None:
        """Gather and measure; raise UnavailableError where the ranks would not find each other."""
        self._write("node", self._own)
        if self._node == 0:
            self._emit(self._own)
        if self._nodes == 1:
            return
        all_others = set(range(self._nodes)) - {self._node}
        wanted = all_others if self._node == 0 else self._to_probe()
        others = self._collect(NodeFacts, "node", wanted, self._emit if self._node == 0 else _ignore)
        probed = [others[node] for node in sorted(self._to_probe() & others.keys())]
        peers = tuple(probe(self._node, each, self._secret) for each in probed)
        seen = None
        if self._node and (zero := others.get(0)) is not None:
            seen = look_at_shared_files(self._node, zero, self._secret, self._folder)
        record = NodeRecord(peers=peers, shared_file=seen)
        self._write("peers", record)
        if self._node == 0:
            self._conclude(record, others)

    def _conclude(self, own: NodeRecord, others: Mapping[int, NodeFacts]) -> None:
        others_of_zero = set(range(1, self._nodes))
        answered = self._collect(NodeRecord, "peers", others_of_zero & others.keys(), _ignore)
        records = [own, *answered.values()]
        for record in records:
            for fact in (*record.peers, *([] if record.shared_file is None else [record.shared_file])):
                self._emit(fact)
        for node in range(1, self._nodes):
            shared_file(self._folder, node).unlink(missing_ok=True)
        failed = [peer for record in records for peer in record.peers if peer.problem]
        if silent := others_of_zero - (others.keys() & answered.keys()):
            raise UnavailableError(
                f"node {', '.join(map(str, sorted(silent)))} has said nothing",
                cause=f"node 0 has waited {_FACTS_S:.0f} s for what it writes into {self._folder}",
                hint="its rank hangs, or node 0 does not see its files: the logs of both nodes",
            )
        if failed:
            raise UnavailableError(
                f"node {failed[0].node} does not reach node {failed[0].peer} at {failed[0].address}",
                cause=failed[0].problem,
                hint="open all TCP ports between the nodes, or choose another network by --interface",
            )

    def _to_probe(self) -> set[int]:
        """The nodes to which this one connects."""
        if self._nodes <= _ALL_PAIRS:
            return set(range(self._nodes)) - {self._node}
        chosen = {0, (self._node + 1) % self._nodes, (self._node + self._nodes // 2) % self._nodes}
        return chosen - {self._node}

    def _write(self, kind: str, record: BaseModel) -> None:
        whole = {"start": self._start, "record": record.model_dump(mode="json")}
        write_json_atomic(self._folder / f"{kind}-{self._node}.json", whole)

    def _collect(
        self, model: type[M], kind: str, wanted: set[int], emit: Callable[[M], None]
    ) -> dict[int, M]:
        """What other nodes have written; those that are not there in time are missing."""
        deadline = time.monotonic() + _FACTS_S
        left = set(wanted)
        found: dict[int, M] = {}
        while left and time.monotonic() < deadline:
            os.listdir(self._folder)  # NFS caches that a name is absent; listing asks the server again
            for node in sorted(left):
                if (record := self._read(self._folder / f"{kind}-{node}.json")) is not None:
                    found[node] = model.model_validate(record)
                    left.discard(node)
                    emit(found[node])
            if left:
                time.sleep(max(_POLL_S, _POLL_PER_NODE_S * self._nodes))
        return found

    def _read(self, path: Path) -> object:
        try:
            record = read_json(path)
        except (OSError, ValueError):  # a stale handle of NFS
            return None
        return record["record"] if record is not None and record.get("start") == self._start else None


def _key(folder: Path) -> bytes:
    """The run key, which only the owner of the run can read."""
    return (folder.parent / "control" / "key").read_bytes()


def _ignore(fact: BaseModel) -> None:
    """For nodes that tell nobody."""
