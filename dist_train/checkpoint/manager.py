"""CheckpointManager: save, resume, retain checkpoints. Every method that moves state is collective."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from dist_train.checkpoint.agreement import on_every_rank, on_rank_zero, with_all_ranks
from dist_train.checkpoint.collective_load import load_newest_together, load_step_together
from dist_train.checkpoint.collective_write import RankShare, RankZeroWork, write_collectively
from dist_train.checkpoint.format.layout import FENCE
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.init_from import check_init_from, load_named, load_weights_of
from dist_train.checkpoint.node_readers import find_readers
from dist_train.checkpoint.run_context import (
    current_control,
    meet,
    note_restored,
    note_saved,
    place_of,
    run_and_attempt,
    save_context,
    settle_finite_check,
    warn_of_differences,
)
from dist_train.checkpoint.save_results import Committed, Restored
from dist_train.checkpoint.sharded_state import ShardedState, refuse_unlike_sharding, share_out
from dist_train.checkpoint.snapshot_writer import write_failed
from dist_train.checkpoint.state.collect import CollectedState, collect, contiguous_on_host, refuse_unstorable
from dist_train.checkpoint.state.data_position import DataPosition, identity, position_from
from dist_train.checkpoint.state.pending_gradients import without_pending_gradients
from dist_train.checkpoint.state.per_rank import apply_per_rank, check_per_rank
from dist_train.checkpoint.state.per_rank_state import (
    gather_contents,
    gather_per_rank,
    names_of_entries,
    own_tensors,
    refuse_unlike_entries,
)
from dist_train.checkpoint.state.replicas import Compared, compare_replicas
from dist_train.checkpoint.state.restore import apply, apply_buffers, check_fits, log_other_entries
from dist_train.checkpoint.state.rng_restore import apply_rng_state, check_rng_state
from dist_train.checkpoint.state.snapshot import Snapshot, take_snapshot
from dist_train.checkpoint.state.stage_tensors import complete_stages
from dist_train.checkpoint.store.checkpoint_names import committed_steps, is_there
from dist_train.checkpoint.store.fence import begin_attempt
from dist_train.checkpoint.store.last_finite import warn_of_restored, warn_of_saved
from dist_train.checkpoint.store.open_storage import Location, open_storage
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.checkpoint.store.retention import Retention, apply_retention
from dist_train.checkpoint.store.run_identity import refuse_other_run
from dist_train.checkpoint.store.verify import VerifyReport, verify_stored
from dist_train.checkpoint.store.writer_lock import ProcessWriter
from dist_train.errors import CheckpointError, ConfigError, NotFoundError
from dist_train.rundir.step_names import step_name
from dist_train.rundir.times.span_clock import RESTORE, SAVE_STALL, counted_as

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

logger = logging.getLogger(__name__)


class CheckpointManager:
    """Saves and restores the checkpoints of one run in one directory or other storage.

    `state` maps names to modules (wrapped or not), optimizers, anything with state_dict() and
    load_state_dict(), tensors and plain values; PerRank(object) for what differs between ranks. Parameters
    and optimizer state are stored by name, the RNG state of every rank is always saved and restored, and
    nothing is pickled.

    Args:
        directory: where the checkpoints are: a directory, a URL whose scheme a plug-in has registered, or
            a storage; created at the first save.
        keep_last: how many of the newest checkpoints to keep; at least two are kept.
        every_steps: the interval of save_if_due.
        keep_best: how many of those with the best scores to keep besides.
        best_mode: whether the smallest or the largest score is the best.
        control: the control group of all ranks; default the current run's.
        run_id: names the run: checkpoints of another one are refused. Default the agent's; without an agent
            the directory is the run.
        attempt: default the agent's; without an agent, the next free number is taken at the first save, so
            that a process that only reads never becomes the owner of the directory.
        config_xxh3: hash of the run's config, for the manifest.
        strategy: its name, for the manifest.
        determinism: what the bits depend on, for the manifest; default those of this process.
        on_commit: called on rank 0 after each commit.
    """

    def __init__(
        self,
        directory: Location,
        *,
        keep_last: int = 3,
        every_steps: int | None = None,
        keep_best: int = 0,
        best_mode: Literal["min", "max"] = "min",
        control: Control | None = None,
        run_id: str = "",
        attempt: int | None = None,
        config_xxh3: str = "",
        strategy: str = "single",
        determinism: Mapping[str, JsonValue] | None = None,
        on_commit: Callable[[Committed], None] | None = None,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise ConfigError(f"every_steps={every_steps}: it counts steps")
        self.retention = Retention(keep_last, keep_best, best_mode)
        self.storage = open_storage(directory, absolute=True)
        self.directory = self.storage.path_of("")
        self.every_steps = every_steps
        self._control = control
        self._run_id, self._attempt = run_and_attempt(run_id, attempt)
        self._has_number = self._attempt is not None
        self._owner = False
        # The step that was restored or saved last: what was saved after it is another timeline's.
        self._went_on_from: int | None = None
        self._process_writer = ProcessWriter(self.storage.location)
        self._config_xxh3, self._strategy = config_xxh3, strategy
        self._determinism = determinism
        self._on_commit = on_commit

    @property
    def control(self) -> Control:
        """The control group of all ranks: the one given, else the current run's."""
        return self._control if self._control is not None else current_control()

    def begin_attempt(self) -> int:
        """Become the owner of the directory: remove older attempts' leftovers, write fence.json.

        Called by load_latest and save; on rank 0 only, not collective.

        Returns:
            The number of the attempt.

        Raises:
            CheckpointError: a newer attempt, another run or another live process owns the directory.
            CheckpointWriteError: the directory cannot be written.
        """
        if not self._owner or self._attempt is None:
            try:
                self._attempt = begin_attempt(self.storage, self._attempt, self._run_id)
            except OSError as error:
                raise write_failed(error, self.storage, FENCE) from error
            self._owner = True
        return self._attempt

    @counted_as(SAVE_STALL)
    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        data: Mapping[str, Any] | None = None,
        epoch: int = 0,
        samples_in_epoch: int = 0,
        samples_total: int = 0,
        score: float | None = None,
    ) -> Committed:
        """Commit `state` as of the end of optimizer step `step` (collective).

        Args:
            step: optimizer steps done.
            state: the same names and values on all ranks; buffers alone may differ.
            data: the loader's state_dict(). Without it, data and position are those of the one loader in
                `state`.
            epoch: whole epochs done.
            samples_in_epoch: samples of this epoch whose step is done.
            samples_total: samples since the start.
            score: for keep_best.

        Raises:
            CheckpointError: something in `state` cannot be stored, or the directory is another run's.
            ReplicaMismatch: ranks do not hold the same state; nothing is committed.
            CheckpointWriteError: nothing was committed, older checkpoints stay.
            NonFiniteError: what run.check_finite was given is not finite; nothing is committed.
        """
        started, control = time.perf_counter(), self.control
        place = place_of(control)
        meet(control, f"CheckpointManager.save({step})", step)
        settle_finite_check()
        collected, own_names = with_all_ranks(
            control, lambda: self._collected(without_pending_gradients(state)), names_of_entries
        )
        names, sharded, absent = zip(*own_names, strict=True)
        refuse_unlike_entries(step, names)
        if any(absent):
            complete_stages(control, step, collected)
            sharded = (True,) * control.world_size
        is_sharded = refuse_unlike_sharding(step, sharded)
        # The last of the user's code: what it draws or changes is compared and saved.
        own_state = gather_contents(control, collected)
        compared = compare_replicas(control, step, collected)
        shards = share_out(control, step, collected) if is_sharded else ShardedState()
        own = on_every_rank(control, lambda: own_tensors(collected, control.rank, place, compared.differing))
        per_rank = gather_per_rank(control, own)
        if data is None and not (epoch or samples_in_epoch or samples_total):
            position = position_from(collected.entries)
        else:
            position = DataPosition(identity(data or {}), epoch, samples_in_epoch, samples_total)
        if control.is_main:
            per_rank |= own_state.tensors
        work = RankZeroWork(
            data_bytes=sum(tensor.nbytes for tensor in collected.tensors.values()),
            snapshot=lambda: self._snapshot(step, collected, per_rank, position, score, compared, shards),
            committed=self._committed,
            after=self._went_on_from,
        )
        share = RankShare(control.rank, own_state, shards)
        answer = write_collectively(control, self.storage, share, work)
        assert isinstance(answer, dict)
        hashes, name = {key: str(value) for key, value in answer.items()}, step_name(step)
        committed = Committed(
            step=step,
            path=self.storage.path_of(name),
            location=self.storage.locate(name),
            seconds=time.perf_counter() - started,
            **hashes,
        )
        note_saved(step, committed.location)
        if control.is_main:
            logger.debug("step %s saved in %.2f s: %s", step, committed.seconds, committed.location)
            if self._on_commit is not None:
                self._on_commit(committed)
        return committed

    def _collected(self, state: Mapping[str, Any]) -> CollectedState:
        found = collect(state)
        return contiguous_on_host(found) if self.control.is_main else found

    def _snapshot(
        self,
        step: int,
        collected: CollectedState,
        per_rank: Mapping[str, Any],
        position: DataPosition,
        score: float | None,
        compared: Compared,
        shards: ShardedState,
    ) -> Snapshot:
        self._process_writer.begin_save()
        attempt = self.begin_attempt()
        context = save_context(
            self.control, self._run_id, attempt, self._strategy, self._config_xxh3, self._determinism
        )
        return take_snapshot(
            step, collected, per_rank, context, position, score, compared.digests, shards.facts
        )

    def _committed(self, snapshot: Snapshot, manifest: Manifest) -> JsonValue:
        self._went_on_from = snapshot.step
        apply_retention(self.storage, self.retention, snapshot.step, snapshot.attempt)
        warn_of_saved(self.storage, snapshot.step, snapshot.non_finite)
        return {name: getattr(manifest, name) for name in ("state_hash", "weights_hash", "self_hash")}

    def save_if_due(self, step: int, state: Mapping[str, Any], **facts: Any) -> bool:
        """Save if `step` is a multiple of every_steps; return whether it did (collective).

        `facts` are the keywords of save().
        """
        if self.every_steps is None:
            raise ConfigError(
                "save_if_due has no interval: every_steps was not given",
                hint="CheckpointManager(directory, every_steps=100)",
            )
        if step <= 0 or step % self.every_steps:
            return False
        self.save(step, state, **facts)
        return True

    @counted_as(RESTORE)
    def load_latest(
        self,
        state: Mapping[str, Any],
        *,
        init_from: Location | None = None,
        fresh_optimizer: bool | None = None,
    ) -> Restored | None:
        """Restore this run's newest whole checkpoint; None where training begins at step 0 (collective).

        Damaged ones are moved to quarantine/ and named in a warning. RNG state is restored last, so call
        this after everything that draws random numbers.

        Args:
            state: as for save().
            init_from: what a run without a checkpoint of its own begins with: another run's checkpoint, or
                the newest of a directory of them. Once this run has saved, its own is taken.
            fresh_optimizer: given with init_from. True: only the weights and buffers of the modules are
                loaded; the training begins at step 0 and None is returned. False: everything is restored.

        Raises:
            CheckpointError: it does not fit `state`, it is another run's, checkpoints exist and none of
                them is whole, or something in `state` could not be saved later.
            ConfigError: init_from without fresh_optimizer.
            UnavailableError: the storage cannot be read.
        """
        check_init_from(init_from, fresh_optimizer)
        control = self.control
        meet(control, "CheckpointManager.load_latest")
        on_every_rank(control, lambda: refuse_unstorable(state, control.rank))
        own = load_newest_together(control, self.storage, self._begin_numbered_attempt, self._check_run)
        if own is None and control.is_main:
            note_restored(None)
        if own is None and init_from is not None:
            named = load_named(control, init_from, find_readers(control))
            if not fresh_optimizer:
                return self._restore(state, named)
            load_weights_of(control, state, named)
            return None
        if own is None:
            logger.debug("no checkpoint in %s: beginning at step 0", self.storage.location)
            return None
        return self._restore(state, own)

    def _begin_numbered_attempt(self) -> None:
        if self._has_number:
            self.begin_attempt()

    def _check_run(self, found: LoadedCheckpoint) -> None:
        if self._run_id:
            refuse_other_run(self.storage, self._run_id, found.manifest)
        elif found.manifest.run_id:
            logger.warning(
                "%s is of run %s, and this script has no run id: it is read; a save beside it is refused",
                found.location,
                found.manifest.run_id,
            )

    @counted_as(RESTORE)
    def load(self, step: int, state: Mapping[str, Any]) -> Restored:
        """Restore one step, also of another run: it is named by its directory and step (collective).

        What was saved after it stays until the next save, which moves it to quarantine/.

        Raises:
            NotFoundError: there is no such step; CheckpointError: it is damaged or does not fit.
            UnavailableError: the storage cannot be read.
        """
        control = self.control
        name = on_rank_zero(control, lambda: self._name_of(step))
        return self._restore(state, load_step_together(control, self.storage, str(name)))

    def _restore(self, state: Mapping[str, Any], loaded: LoadedCheckpoint) -> Restored:
        control = self.control
        rank, world_size, place = control.rank, control.world_size, place_of(control)
        manifest = loaded.manifest

        def check() -> None:
            check_fits(state, loaded)
            check_per_rank(state, loaded, world_size)
            check_rng_state(loaded, place)

        on_every_rank(control, check)
        self._went_on_from = manifest.step
        apply(state, loaded)
        apply_per_rank(state, loaded, rank, world_size)
        apply_buffers(state, loaded, rank, manifest.world_size == world_size)
        note_restored(manifest.step, loaded.location)
        if control.is_main:
            warn_of_restored(self.storage, manifest.step, loaded.reserved)
            logger.debug("restored %s", loaded.location)
            warn_of_differences(self._determinism, manifest.determinism)
            log_other_entries(state, loaded)
        return Restored(
            step=manifest.step,
            epoch=manifest.epoch,
            samples_in_epoch=manifest.samples_in_epoch,
            samples_total=manifest.samples_total,
            world_size=manifest.world_size,
            path=self.storage.path_of(loaded.name),
            rng_restored=apply_rng_state(loaded, place, rank),
            location=loaded.location,
            state_hash=manifest.state_hash,
            weights_hash=manifest.weights_hash,
        )

    def steps(self) -> list[int]:
        """List the committed steps, oldest first; their data is not verified here."""
        return committed_steps(self.storage)

    def verify(self, step: int) -> VerifyReport:
        """Read every byte of one step and compare it.

        Raises:
            NotFoundError: there is no such step; CheckpointError: it is damaged, naming file and block.
        """
        name = self._name_of(step)
        report = verify_stored(self.storage, name)
        if not report.ok:
            raise CheckpointError(f"{name}: " + "; ".join(report.problems))
        return report

    def _name_of(self, step: int) -> str:
        name = step_name(step)
        if not is_there(self.storage, name):
            there = ", ".join(map(str, self.steps())) or "none"
            raise NotFoundError(f"no checkpoint of step {step} in {self.storage.location}; there is {there}")
        return name
