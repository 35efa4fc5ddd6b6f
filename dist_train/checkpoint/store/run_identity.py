"""Whose checkpoints a location holds: one run's, and one live writer's.

A run is identified by its run id, which `dist-train launch` gives and `resume` and every restart keep. A
script that something else started has none: then the directory is the run, as for any script that looks for
its own files where it left them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


def claim_location(
    storage: CheckpointStorage, run_id: str, owner: str | None, manifests: Collection[Manifest]
) -> None:
    """Make sure that this process may write here.

    Args:
        storage: the location, prepared.
        run_id: of this process; empty where it has none.
        owner: the run id of fence.json; None where there is none in it.
        manifests: of the checkpoints that are there.

    Raises:
        CheckpointError: the checkpoints are another run's, or another live process writes here.
    """
    is_own = owner == run_id
    if not is_own and manifests:
        newest = max(manifests, key=lambda manifest: manifest.step)
        refuse_other_run(storage, run_id, newest)
        if newest.run_id == "" != run_id:
            logger.warning(
                "the checkpoints in %s have no run id: run %s goes on with them", storage.location, run_id
            )
    holder = _in_words(run_id)
    other = storage.hold_writer(holder)
    # Of one run the newer attempt takes over, also from a process that was declared lost and still lives.
    if other is not None and not (is_own and run_id):
        raise CheckpointError(
            f"{storage.location} is being written by {other}; this is {holder}",
            cause="two live writers would take each other's checkpoints for their own",
            hint="give each run its own checkpoint directory, or end that process first",
        )


def refuse_other_run(storage: CheckpointStorage, run_id: str, manifest: Manifest) -> None:
    """Refuse a checkpoint of another run.

    Raises:
        CheckpointError: both have a run id, or only the checkpoint has one, and they are not the same.
    """
    if manifest.run_id in ("", run_id):
        return
    raise CheckpointError(
        f"the checkpoints in {storage.location} are those of run {manifest.run_id}, to step {manifest.step}; "
        f"this is {_in_words(run_id)}",
        cause="it would go on from another run's weights, optimizer and step, and put its own among them",
        hint="to go on with that run: dist-train resume RUN\n"
        '         for a new one: CheckpointManager(run.dir / "checkpoints"), or any directory of its own\n'
        "         to begin that one with these weights: "
        f'manager.load_latest(state, init_from="{storage.location}", fresh_optimizer=True)',
    )


def _in_words(run_id: str) -> str:
    return f"run {run_id}" if run_id else "a script without a run id"
