"""Put a checkpoint that was chosen and verified into the state of every rank."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dist_train.checkpoint.agreement import on_every_rank
from dist_train.checkpoint.run_context import note_restored, place_of, warn_of_differences
from dist_train.checkpoint.save_results import Restored
from dist_train.checkpoint.state.per_rank import apply_per_rank, check_per_rank
from dist_train.checkpoint.state.restore import apply, apply_buffers, check_fits, log_other_entries
from dist_train.checkpoint.state.rng_restore import apply_rng_state, check_rng_state, is_same_mesh
from dist_train.checkpoint.store.last_finite import warn_of_restored
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.checkpoint.store.storage import CheckpointStorage

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)


def restore_together(
    control: Control,
    storage: CheckpointStorage,
    state: Mapping[str, Any],
    loaded: LoadedCheckpoint,
    determinism: Mapping[str, JsonValue] | None,
) -> Restored:
    """Restore `state`, RNG state last (collective).

    Args:
        control: all ranks.
        storage: where the checkpoint is.
        state: as for `CheckpointManager.save`.
        loaded: the checkpoint.
        determinism: what the bits depend on here; None: as this process says.

    Raises:
        CheckpointError: it does not fit `state`; nothing is changed.
    """
    rank, world_size, place = control.rank, control.world_size, place_of(control)
    manifest = loaded.manifest

    def check() -> None:
        check_fits(state, loaded)
        check_per_rank(state, loaded, world_size)
        check_rng_state(loaded, place)

    on_every_rank(control, check)
    apply(state, loaded)
    apply_per_rank(state, loaded, rank, world_size)
    apply_buffers(state, loaded, rank, is_same_mesh(manifest, place))
    note_restored(manifest.step, loaded.location)
    if control.is_main:
        warn_of_restored(storage, manifest.step, loaded.reserved)
        logger.debug("restored %s", loaded.location)
        warn_of_differences(determinism, manifest.determinism)
        log_other_entries(state, loaded)
    return Restored(
        step=manifest.step,
        epoch=manifest.epoch,
        samples_in_epoch=manifest.samples_in_epoch,
        samples_total=manifest.samples_total,
        world_size=manifest.world_size,
        path=storage.path_of(loaded.name),
        rng_restored=apply_rng_state(loaded, place, rank),
        location=loaded.location,
        state_hash=manifest.state_hash,
        weights_hash=manifest.weights_hash,
    )
