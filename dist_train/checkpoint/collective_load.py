"""Choose a checkpoint and load it on all ranks: rank 0 chooses, all ranks verify the files of its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dist_train.checkpoint.agreement import on_rank_zero
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.long_work import on_every_rank_for_long, on_rank_zero_for_long
from dist_train.checkpoint.node_readers import NodeReaders, find_readers
from dist_train.checkpoint.store.find_latest import load_newest, quarantine_all, reading
from dist_train.checkpoint.store.reader import LoadedCheckpoint, read_checkpoint
from dist_train.checkpoint.store.sharded_reader import files_of_parts
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import check_file

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)


def load_newest_together(
    control: Control,
    storage: CheckpointStorage,
    begin: Callable[[], object],
    accept: Callable[[LoadedCheckpoint], None],
) -> LoadedCheckpoint | None:
    """Load the newest whole checkpoint; None where there is none (collective).

    Args:
        control: all ranks.
        storage: the run's own.
        begin: called first, on rank 0.
        accept: called on rank 0 with a candidate; raises for one of another run.

    Raises:
        CheckpointError: there are checkpoints, and none can be used; or as `accept`.
        UnavailableError: the storage cannot be read.
    """
    readers = find_readers(control)
    faults: dict[str, str] = {}
    while True:
        loaded = _candidate(storage, readers, begin, accept, faults)
        if loaded is None:
            return None
        fault = _fault_in_parts(control, storage, loaded)
        if fault is None:
            on_rank_zero(control, lambda: quarantine_all(storage, faults))
            return loaded
        if control.is_main:
            logger.warning("%s cannot be used: %s", loaded.location, fault)
        faults[loaded.name] = fault


def _candidate(
    storage: CheckpointStorage,
    readers: NodeReaders,
    begin: Callable[[], object],
    accept: Callable[[LoadedCheckpoint], None],
    faults: dict[str, str],
) -> LoadedCheckpoint | None:
    chosen: list[LoadedCheckpoint] = []

    def choose() -> JsonValue:
        if not faults:
            begin()
        with reading(storage):
            found = load_newest(storage, memory_for=readers.memory_for, faults=faults)
        if found is None:
            return None
        accept(found)
        chosen.append(found)
        return [found.name, found.manifest.self_hash]

    answer = on_rank_zero_for_long(readers.control, choose)
    return None if answer is None else readers.load_chosen(lambda: storage, answer, chosen)


def load_step_together(control: Control, storage: CheckpointStorage, name: str) -> LoadedCheckpoint:
    """Load one checkpoint by its name (collective).

    Raises:
        DamagedCheckpoint: it is damaged; UnavailableError: the storage cannot be read.
    """
    readers, chosen = find_readers(control), list[LoadedCheckpoint]()

    def load_it() -> JsonValue:
        with reading(storage):
            chosen.append(read_checkpoint(storage, name, readers.memory_for, verify_parts=False))
        return [chosen[0].name, chosen[0].manifest.self_hash]

    answer = on_rank_zero_for_long(control, load_it)
    loaded = readers.load_chosen(lambda: storage, answer, chosen)
    if fault := _fault_in_parts(control, storage, loaded):
        raise DamagedCheckpoint(f"{name}: {fault}")
    return loaded


def _fault_in_parts(control: Control, storage: CheckpointStorage, loaded: LoadedCheckpoint) -> str | None:
    """Say what is damaged in the files of parts, which the ranks verify in turn; the same on all ranks."""
    files = files_of_parts(loaded.manifest)
    entries = [entry for entry in loaded.manifest.files if entry.name in files]
    if not entries:
        return None

    def verify() -> str | None:
        for entry in entries[control.rank :: control.world_size]:
            try:
                with reading(storage):
                    check_file(storage, loaded.name, entry)
            except DamagedCheckpoint as error:
                return error.what
        return None

    found = control.all_gather(on_every_rank_for_long(control, verify))
    return next((str(fault) for fault in found if fault is not None), None)
