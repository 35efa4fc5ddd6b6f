"""Begin a run with a checkpoint that the caller names: another run's, or one that was copied."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dist_train.checkpoint.agreement import on_every_rank
from dist_train.checkpoint.format.layout import MANIFEST
from dist_train.checkpoint.long_work import on_rank_zero_for_long
from dist_train.checkpoint.node_readers import NodeReaders
from dist_train.checkpoint.state.collect import kind_of
from dist_train.checkpoint.state.restore import apply, apply_buffers, check_fits
from dist_train.checkpoint.store.find_latest import load_newest, reading
from dist_train.checkpoint.store.open_storage import Location, open_checkpoint, open_storage
from dist_train.checkpoint.store.reader import LoadedCheckpoint, read_checkpoint
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import ConfigError, NotFoundError
from dist_train.rundir.step_names import parse_step

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)


def check_init_from(init_from: Location | None, fresh_optimizer: bool | None) -> None:
    """Refuse one of both without the other.

    Raises:
        ConfigError: it is not said what becomes of the optimizer, or nothing is named to begin with.
    """
    if (init_from is None) == (fresh_optimizer is None):
        return
    if init_from is None:
        raise ConfigError(f"fresh_optimizer={fresh_optimizer} without init_from: nothing to begin with")
    raise ConfigError(
        f"init_from={str(init_from)!r} does not say what becomes of the optimizer",
        hint="fresh_optimizer=True: the weights alone, at step 0; False: everything, at its step",
    )


def load_named(control: Control, location: Location, readers: NodeReaders) -> LoadedCheckpoint:
    """Load a checkpoint, or the newest whole one of a directory; nothing there is changed (collective).

    Raises:
        NotFoundError: there is none; CheckpointError: it is damaged.
        UnavailableError: the storage cannot be read.
    """
    chosen: list[LoadedCheckpoint] = []

    def choose() -> JsonValue:
        chosen.append(_find(location, readers))
        return [chosen[0].name, chosen[0].manifest.self_hash]

    answer = on_rank_zero_for_long(control, choose)
    return readers.load_chosen(lambda: _opened(location)[0], answer, chosen)


def load_weights_of(control: Control, state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
    """Load the modules of `state` and nothing else; all ranks take rank 0's buffers (collective).

    Raises:
        CheckpointError: the checkpoint lacks a module of `state`, or one does not fit.
    """
    modules = {key: value for key, value in state.items() if kind_of(value) == "module"}
    weights = {key: entry for key, entry in loaded.entries.items() if key in modules}
    part = replace(loaded, entries=weights)
    on_every_rank(control, lambda: check_fits(modules, part))
    apply(modules, part)
    apply_buffers(modules, part, control.rank, same_mesh=False)
    if control.is_main:
        left = ", ".join(sorted(set(loaded.entries) - set(modules))) or "nothing"
        logger.info("begins with the weights of %s at step 0; not taken: %s", loaded.location, left)


def _find(location: Location, readers: NodeReaders) -> LoadedCheckpoint:
    storage, name = _opened(location)
    memory_for = readers.memory_for
    with reading(storage):
        if name:
            found: LoadedCheckpoint | None = read_checkpoint(storage, name, memory_for)
        else:
            found = load_newest(storage, read_only=True, memory_for=memory_for)
    if found is None:
        raise NotFoundError(f"init_from: there is no checkpoint in {storage.location}")
    return found


def _opened(location: Location) -> tuple[CheckpointStorage, str]:
    """The storage, and the name of the one checkpoint that is meant; empty where it is a folder of them."""
    if isinstance(location, CheckpointStorage):
        return location, ""
    storage, name = open_checkpoint(location)
    if parse_step(name) is not None or storage.exists(f"{name}/{MANIFEST}"):
        return storage, name
    return open_storage(location), ""
