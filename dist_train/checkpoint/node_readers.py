"""One rank of each node reads a checkpoint and verifies it; the others of the node map its memory.

Rank 0 reads for its own node, as it chooses the checkpoint; of each other node the rank with the lowest
number. Storage is read and hashed once per node. What the others get is the verified memory itself, sealed,
and not the page cache, which may have been read from storage again since, so no rank loads a byte that
was not verified; and one copy of the state is in a node's memory, not one for each rank. Every rank still
looks for the manifest of the checkpoint: a directory that is not shared is found on whichever rank has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dist_train.checkpoint.agreement import on_every_rank
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.format.node_memory import SharedMemory, machine_of_this_process, open_offer
from dist_train.checkpoint.format.tensor_memory import OwnMemory, TensorMemory
from dist_train.checkpoint.store.find_latest import load_exact, reading, see_exact
from dist_train.checkpoint.store.reader import LoadedCheckpoint, in_memory_and_sharded
from dist_train.checkpoint.store.sharded_reader import files_of_parts
from dist_train.checkpoint.store.storage import CheckpointStorage

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeReaders:
    """Which rank reads for which.

    Args:
        control: of all ranks.
        of_ranks: for each rank, the rank that reads for it.
    """

    control: Control
    of_ranks: tuple[int, ...]

    @property
    def reader(self) -> int:
        """The rank that reads for this one."""
        return self.of_ranks[self.control.rank]

    def memory_for(self, manifest: Manifest) -> TensorMemory:
        """Return where this rank, a reader, puts a checkpoint: memory for the node, if it has more ranks."""
        if self.of_ranks.count(self.control.rank) > 1:
            try:
                return SharedMemory(_bytes_of_whole(manifest), len(manifest.tensors))
            except OSError as error:
                logger.warning("every rank of this node reads the checkpoint: no shared memory: %s", error)
        return OwnMemory()

    def load_chosen(
        self,
        open_storage: Callable[[], CheckpointStorage],
        answer: JsonValue,
        chosen: list[LoadedCheckpoint],
    ) -> LoadedCheckpoint:
        """Load the checkpoint that rank 0 has chosen (collective).

        Args:
            open_storage: where it is.
            answer: its name and self_hash.
            chosen: on rank 0 the checkpoint, as `memory_for` has placed it; empty on the others.

        Raises:
            CheckpointError: a rank does not see it, or sees another one; or it is damaged.
            UnavailableError: the storage cannot be read.
        """
        assert isinstance(answer, list)
        name, self_hash = map(str, answer)

        def load() -> LoadedCheckpoint:
            storage = open_storage()
            with reading(storage):
                return load_exact(storage, name, self_hash, memory_for=self.memory_for)

        def see() -> Manifest:
            storage = open_storage()
            with reading(storage):
                return see_exact(storage, name, self_hash)

        def read() -> LoadedCheckpoint | Manifest:
            if chosen:
                return chosen[0]
            return load() if self.reader == self.control.rank else see()

        mine = on_every_rank(self.control, read)
        if len(set(self.of_ranks)) == self.control.world_size:
            assert isinstance(mine, LoadedCheckpoint)
            return mine
        offers = self.control.all_gather(_offer(mine) if isinstance(mine, LoadedCheckpoint) else None)

        def take() -> LoadedCheckpoint:
            if isinstance(mine, LoadedCheckpoint):
                return mine
            taken = _take(offers[self.reader], open_storage(), name, mine)
            return load() if taken is None else taken

        loaded = on_every_rank(self.control, take)
        if isinstance(mine, LoadedCheckpoint) and mine.shared is not None:
            mine.shared.close()
        return loaded


def find_readers(control: Control) -> NodeReaders:
    """Agree on who reads (collective): ranks of one kernel, user and process namespace can share memory."""
    places = control.all_gather(_place(control.rank))
    return NodeReaders(control, tuple(places.index(place) for place in places))


def _bytes_of_whole(manifest: Manifest) -> int:
    of_parts = files_of_parts(manifest)
    return sum(entry.bytes for entry in manifest.files if entry.name not in of_parts)


def _place(rank: int) -> JsonValue:
    place = machine_of_this_process()
    return rank if place is None else place  # alone, as far as is known


def _offer(loaded: LoadedCheckpoint) -> JsonValue:
    if loaded.shared is None:
        return None
    try:
        return loaded.shared.offer(loaded.tensors.in_memory, [dict(loaded.entries), dict(loaded.reserved)])
    except OSError as error:
        logger.warning("every rank of this node reads the checkpoint: its memory is not shared: %s", error)
        return None


def _take(
    offer: JsonValue, storage: CheckpointStorage, name: str, manifest: Manifest
) -> LoadedCheckpoint | None:
    if not isinstance(offer, list):
        return None  # the reader has said why
    try:
        tensors, (entries, reserved) = open_offer(offer)
    except OSError as error:
        logger.warning(
            "this rank reads the checkpoint itself: it cannot map what another has read: %s", error
        )
        return None
    found = in_memory_and_sharded(storage, name, manifest, tensors)
    return LoadedCheckpoint(name, storage.locate(name), manifest, found, entries, reserved, is_shared=True)
