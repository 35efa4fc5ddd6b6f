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
from dist_train.cluster_check.peer_probe import SEEN_S, look_at_shared_files, probe
from dist_train.doctor.facts import NodeFacts, PeerFacts, SharedFileFacts
from dist_train.errors import UnavailableError
from dist_train.rundir.records import read_json, write_json_atomic

M = TypeVar("M", bound=BaseModel)
_POLL_S = 0.05
_ALL_PAIRS = 16  # of more nodes each connects to node 0 and to two others


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
        others = self._collect(NodeFacts, "node", self._emit if self._node == 0 else _ignore)
        if self._nodes == 1:
            return
        peers = tuple(probe(self._node, each, self._secret) for each in self._to_probe(others))
        seen = None
        if self._node and (zero := others.get(0)) is not None:
            seen = look_at_shared_files(self._node, zero, self._secret, self._folder)
        record = NodeRecord(peers=peers, shared_file=seen)
        self._write("peers", record)
        if self._node == 0:
            self._conclude(record, len(others))

    def _conclude(self, own: NodeRecord, others: int) -> None:
        records = [own, *self._collect(NodeRecord, "peers", _ignore).values()]
        for record in records:
            for fact in (*record.peers, *([] if record.shared_file is None else [record.shared_file])):
                self._emit(fact)
        for node in range(1, self._nodes):
            shared_file(self._folder, node).unlink(missing_ok=True)
        failed = [peer for record in records for peer in record.peers if peer.problem]
        if failed or others + 1 < self._nodes or len(records) < self._nodes:
            first = f": node {failed[0].node} not node {failed[0].peer}" if failed else ""
            raise UnavailableError(
                f"the nodes do not reach each other{first}",
                cause=failed[0].problem if failed else "some have said nothing",
                hint="the findings above name nodes and ports",
            )

    def _to_probe(self, others: Mapping[int, NodeFacts]) -> list[NodeFacts]:
        if self._nodes <= _ALL_PAIRS:
            return [others[node] for node in sorted(others)]
        chosen = {0, (self._node + 1) % self._nodes, (self._node + self._nodes // 2) % self._nodes}
        return [others[node] for node in sorted(chosen & others.keys())]

    def _write(self, kind: str, record: BaseModel) -> None:
        whole = {"start": self._start, "record": record.model_dump(mode="json")}
        write_json_atomic(self._folder / f"{kind}-{self._node}.json", whole)

    def _collect(self, model: type[M], kind: str, emit: Callable[[M], None]) -> dict[int, M]:
        """What the other nodes have written; those that are not there in time are missing."""
        deadline = time.monotonic() + SEEN_S * 1.5
        left = {node for node in range(self._nodes) if node != self._node}
        found: dict[int, M] = {}
        while left and time.monotonic() < deadline:
            os.listdir(self._folder)  # NFS caches that a name is absent; listing asks the server again
            for node in sorted(left):
                if (record := self._read(self._folder / f"{kind}-{node}.json")) is not None:
                    found[node] = model.model_validate(record)
                    left.discard(node)
                    emit(found[node])
            if left:
                time.sleep(_POLL_S)
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
