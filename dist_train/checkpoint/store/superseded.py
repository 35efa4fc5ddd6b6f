"""Which checkpoints a save after a rollback supersedes: those of the timeline that was given up."""

from __future__ import annotations

from dist_train.checkpoint.store.checkpoint_names import step_names
from dist_train.checkpoint.store.quarantine import quarantine_all
from dist_train.checkpoint.store.storage import CheckpointStorage


def set_aside_superseded(storage: CheckpointStorage, step: int, after: int | None) -> None:
    """Move every checkpoint that is no past of the one about to be committed to `quarantine/`.

    Called between staging and commit: a crash on the way leaves the step that was gone on from as the
    newest, or one of those that were given up, never a mixture.

    Args:
        storage: where the checkpoints are.
        step: the step that is about to be committed.
        after: the step that this process restored or saved last; None where it did neither: then only
            later steps are superseded.

    Raises:
        OSError: one could not be moved; then nothing may be committed.
    """
    last = step if after is None else min(step, after)
    given_up = {number: name for number, name in step_names(storage).items() if number > last}
    given_up.pop(step, None)  # publish compares that one
    since = "the start" if after is None else f"step {after}"
    reason = f"superseded: the run went on from {since} and is saved at step {step}"
    quarantine_all(storage, {name: reason for _number, name in sorted(given_up.items(), reverse=True)})
