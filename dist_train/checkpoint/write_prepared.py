"""Write and commit a save that is prepared, or a copy of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dist_train.checkpoint.collective_write import RankShare, RankZeroWork, write_collectively
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.prepared_save import PreparedSave
from dist_train.checkpoint.save_results import Committed, SaveTimes
from dist_train.checkpoint.sharded_state import ShardedState, digest_parts
from dist_train.checkpoint.state.snapshot import SaveContext, Snapshot, take_snapshot
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.rundir.step_names import step_name

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue


def write_prepared(
    control: Control,
    storage: CheckpointStorage,
    prepared: PreparedSave,
    times: SaveTimes,
    *,
    context: Callable[[], SaveContext],
    committed: Callable[[Snapshot], None],
    after: int | None,
    alive: Callable[[], None],
) -> Committed:
    """Write it, and commit it (collective).

    Args:
        control: all ranks.
        storage: where to.
        prepared: what is saved.
        times: of this save.
        context: called on rank 0 before anything is written; what the manifest says besides.
        committed: called on rank 0 when it is committed.
        after: the step that the run went on from, as `store.commit.publish` takes it.
        alive: called while ranks write.

    Raises:
        CheckpointError: the directory is another run's.
        CheckpointWriteError: nothing was committed, older checkpoints stay.
    """
    sharded = ShardedState()
    if prepared.parts is not None:
        sharded = digest_parts(control, prepared.collected, prepared.parts)

    def snapshot() -> Snapshot:
        return take_snapshot(
            prepared.step,
            prepared.collected,
            {**prepared.per_rank, **prepared.own.tensors},
            context(),
            prepared.position,
            prepared.score,
            prepared.compared.digests,
            sharded.facts,
        )

    def done(written: Snapshot, manifest: Manifest) -> JsonValue:
        committed(written)
        return {name: getattr(manifest, name) for name in ("state_hash", "weights_hash", "self_hash")}

    work = RankZeroWork(
        data_bytes=sum(tensor.nbytes for tensor in prepared.collected.tensors.values()),
        snapshot=snapshot,
        committed=done,
        after=after,
    )
    share = RankShare(control.rank, prepared.own, sharded)
    answer = write_collectively(control, storage, share, work, alive)
    assert isinstance(answer, dict)
    hashes, name = {key: str(value) for key, value in answer.items()}, step_name(prepared.step)
    return Committed(
        step=prepared.step,
        path=storage.path_of(name),
        location=storage.locate(name),
        seconds=time.perf_counter() - times.started,
        stall_seconds=times.stalled(),
        **hashes,
    )
