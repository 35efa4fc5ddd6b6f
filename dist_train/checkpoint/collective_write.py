"""Write one checkpoint by all ranks: rank 0 stages and publishes it, each rank writes what it alone holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dist_train.checkpoint.format.hash_threads import hash_threads
from dist_train.checkpoint.format.manifest import Manifest, names_of
from dist_train.checkpoint.long_work import keep_alive, on_every_rank_for_long, on_rank_zero_for_long
from dist_train.checkpoint.rank_files import WrittenFiles, write_own_files
from dist_train.checkpoint.sharded_state import ShardedState
from dist_train.checkpoint.snapshot_writer import StagedCheckpoint, write_failed
from dist_train.checkpoint.state.per_rank_state import OwnState, gather_on_rank_zero
from dist_train.checkpoint.state.snapshot import Snapshot
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointWriteError

if TYPE_CHECKING:
    import torch

    from dist_train.distributed.control_group import Control, JsonValue


@dataclass(frozen=True)
class RankZeroWork:
    """What rank 0 does besides.

    Args:
        data_bytes: of its tensors.
        snapshot: takes what it will write.
        committed: called with what was written, and the manifest that is there in the end; its value is that
            of the save.
        after: the step that the run went on from, as `store.commit.publish` takes it.
    """

    data_bytes: int
    snapshot: Callable[[], Snapshot]
    committed: Callable[[Snapshot, Manifest], JsonValue]
    after: int | None


@dataclass(frozen=True)
class RankShare:
    """What each rank writes itself.

    Args:
        rank: this one.
        own: its PerRank entries; rank 0's are written with what it holds for all.
        sharded: its parts of sharded tensors.
    """

    rank: int
    own: OwnState
    sharded: ShardedState

    @property
    def is_written_together(self) -> bool:
        """Whether another rank than rank 0 writes, or rank 0 parts of sharded tensors."""
        return bool(self.own.writers) or any(count is not None for count in self.sharded.bytes_of_ranks)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Of the PerRank entries, what is not written already."""
        return self.own.tensors if self.rank else {}

    @property
    def bytes_here(self) -> int:
        """Of this rank."""
        own = self.own.bytes_of_ranks[self.rank] or 0 if self.rank else 0
        return own + (self.sharded.bytes_of_ranks[self.rank] or 0 if self.sharded.bytes_of_ranks else 0)

    @property
    def bytes_everywhere(self) -> int:
        """Of all ranks, but for what rank 0 holds for all."""
        return self.own.others_bytes + sum(count or 0 for count in self.sharded.bytes_of_ranks)


def write_collectively(
    control: Control,
    storage: CheckpointStorage,
    share: RankShare,
    work: RankZeroWork,
    alive: Callable[[], None] = keep_alive,
) -> JsonValue:
    """Write and commit a checkpoint; return the value of `work.committed` on every rank (collective).

    Args:
        control: all ranks.
        storage: where to.
        share: of this rank.
        work: of rank 0.
        alive: called while ranks write.

    Raises:
        CheckpointWriteError: on every rank; nothing was committed, nothing is left behind, older ones stay.
    """
    if not share.is_written_together:
        return on_rank_zero_for_long(control, lambda: _write_alone(storage, work), alive)
    return _write_together(control, storage, share, work, alive)


def _write_alone(storage: CheckpointStorage, work: RankZeroWork) -> JsonValue:
    with hash_threads(work.data_bytes) as threads:
        snapshot = work.snapshot()
        with StagedCheckpoint(storage, snapshot) as staged:
            staged.begin()
            staged.write(threads)
            manifest = staged.publish(after=work.after)
    return work.committed(snapshot, manifest)


def _write_together(
    control: Control,
    storage: CheckpointStorage,
    share: RankShare,
    work: RankZeroWork,
    alive: Callable[[], None],
) -> JsonValue:
    of_rank_zero: list[tuple[Snapshot, StagedCheckpoint]] = []
    parts_of_rank_zero: list[WrittenFiles] = []
    needed = share.bytes_here
    with hash_threads(needed + (work.data_bytes if control.is_main else 0)) as threads:

        def begin() -> JsonValue:
            snapshot = work.snapshot()
            staged = StagedCheckpoint(storage, snapshot, share.bytes_everywhere)
            of_rank_zero.append((snapshot, staged))
            staged.begin()
            return staged.staging

        def write() -> bytes:
            if control.is_main:
                of_rank_zero[0][1].write(threads)
            try:
                written = write_own_files(
                    storage, str(staging), share.rank, share.tensors, share.sharded.parts, threads
                )
                if control.is_main:
                    parts_of_rank_zero.append(written)
                    return b""
                return written.to_bytes()
            except FileNotFoundError as error:
                raise _not_shared(storage, 0, str(staging), control.rank, "created") from error
            except OSError as error:
                raise write_failed(error, storage, f"rank {control.rank}'s files", needed) from error

        def publish() -> JsonValue:
            snapshot, staged = of_rank_zero[0]
            others = [WrittenFiles.from_bytes(raw) for raw in written]
            for rank, files in enumerate(others, 1):
                _check_seen(storage, staged.staging, rank, files)
            manifest = staged.publish([*parts_of_rank_zero, *others], work.after)
            return work.committed(snapshot, manifest)

        try:
            staging = on_rank_zero_for_long(control, begin, alive)
            # No rank writes any more when one of them has failed and this returns.
            written = gather_on_rank_zero(control, on_every_rank_for_long(control, write, alive))
            return on_rank_zero_for_long(control, publish, alive)
        except BaseException:
            for _, staged in of_rank_zero:
                staged.discard()
            raise


def _check_seen(storage: CheckpointStorage, staging: str, rank: int, written: WrittenFiles) -> None:
    """Refuse files that went to another directory of the same name: the checkpoint would lack them."""
    for name in (name for entry in written.files for name in names_of(entry)):
        if not storage.exists(f"{staging}/{name}"):
            raise _not_shared(storage, rank, name, 0, "written")


def _not_shared(storage: CheckpointStorage, by: int, what: str, rank: int, done: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"rank {rank} does not find {what}, which rank {by} has {done}, in {storage.location}",
        cause="the checkpoint location is not the same on all ranks, or not shared by all nodes; or a newer "
        "attempt of the run has taken over",
        hint="give all ranks one absolute path, on storage that all nodes see",
    )
