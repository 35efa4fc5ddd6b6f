"""CheckpointManager: save, resume, retain checkpoints. Every method that moves state is collective."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from dist_train.checkpoint.agreement import on_every_rank, on_rank_zero
from dist_train.checkpoint.background.background_saves import BackgroundSaves
from dist_train.checkpoint.background.pending_save import PendingSave
from dist_train.checkpoint.background.staged_save import stage
from dist_train.checkpoint.collective_load import load_newest_together, load_step_together
from dist_train.checkpoint.format.layout import FENCE
from dist_train.checkpoint.init_from import check_init_from, load_named, load_weights_of
from dist_train.checkpoint.long_work import keep_alive, no_progress, on_rank_zero_for_long
from dist_train.checkpoint.node_readers import find_readers
from dist_train.checkpoint.prepared_save import PreparedSave, SaveFacts, prepare_save
from dist_train.checkpoint.restore_together import restore_together
from dist_train.checkpoint.run_context import (
    current_control,
    meet,
    note_restored,
    note_saved,
    run_and_attempt,
    save_context,
)
from dist_train.checkpoint.save_results import Committed, Restored, SaveTimes
from dist_train.checkpoint.snapshot_writer import write_failed
from dist_train.checkpoint.state.collect import refuse_unstorable
from dist_train.checkpoint.state.snapshot import SaveContext, Snapshot
from dist_train.checkpoint.store.checkpoint_names import committed_steps, is_there
from dist_train.checkpoint.store.fence import begin_attempt
from dist_train.checkpoint.store.last_finite import warn_of_saved
from dist_train.checkpoint.store.open_storage import Location, open_storage
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.checkpoint.store.retention import Retention, apply_retention
from dist_train.checkpoint.store.run_identity import refuse_other_run
from dist_train.checkpoint.store.verify import VerifyReport, verify_stored
from dist_train.checkpoint.store.writer_lock import ProcessWriter
from dist_train.checkpoint.write_prepared import write_prepared
from dist_train.errors import CheckpointError, ConfigError, NotFoundError
from dist_train.rundir.step_names import step_name
from dist_train.rundir.times.span_clock import RESTORE, SAVE_STALL, counted_as, span_clock

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
        on_commit: called on rank 0 after each commit; of a save that start_save has begun, by the call
            that waits for it.
        asynchronous: save_if_due only starts its saves.
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
        asynchronous: bool = False,
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
        self._asynchronous = asynchronous
        self._background = BackgroundSaves()

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
        started = time.perf_counter()
        self.wait()
        facts, control = SaveFacts(data, epoch, samples_in_epoch, samples_total, score), self.control
        prepared = prepare_save(control, step, state, facts)
        committed = self._write(control, prepared, SaveTimes(started), self._context(control))
        self._note(committed)
        return committed

    @counted_as(SAVE_STALL)
    def start_save(self, step: int, state: Mapping[str, Any], **facts: Any) -> PendingSave:
        """Copy `state` and return; a thread of each rank writes and commits the copies (collective).

        What is changed once this has returned does not reach the checkpoint, whose hashes are those that
        save() would give it. One save is under way at a time: the next call that saves or loads waits
        for it, as wait() does, and so does the end of the run.

        Args:
            step: optimizer steps done.
            state: as for save().
            facts: the other keywords of save().

        Raises:
            CheckpointError, ReplicaMismatch, NonFiniteError: as save().
            CheckpointWriteError: the directory cannot be written, or the save before this has failed.
        """
        started = time.perf_counter()
        self.wait()
        control = self.control
        prepared = prepare_save(control, step, state, SaveFacts(**facts), copies_later=True)
        on_rank_zero_for_long(control, self._become_writer)
        context, beside = self._context(control), self._background.control_beside(control)
        staged = on_every_rank(control, lambda: stage(prepared, self._background.buffer, control.rank))
        times = SaveTimes(started, time.perf_counter() - started, span_clock().sums())
        write = self._process_writer.in_background(
            lambda: self._write(beside, staged, times, context, no_progress)
        )
        pending = PendingSave(step, times.stalled(), write)
        self._background.begin(pending, self._leave)
        return pending

    @counted_as(SAVE_STALL)
    def wait(self) -> Committed | None:
        """Wait for what start_save has begun; None where nothing is under way (collective).

        Raises:
            CheckpointError, CheckpointWriteError: that save has failed; older checkpoints stay.
        """
        committed = self._background.finish()
        if committed is not None:
            self._note(committed)
        return committed

    def poll(self) -> Committed | None:
        """wait(), if that save has ended on all ranks; None at once if it has not (collective)."""
        return self.wait() if self._background.is_done_everywhere(self.control) else None

    def _leave(self, failed: bool) -> None:
        if failed:
            self._background.give_up()
        else:
            self.wait()

    def _write(
        self,
        control: Control,
        prepared: PreparedSave,
        times: SaveTimes,
        context: SaveContext,
        alive: Callable[[], None] = keep_alive,
    ) -> Committed:
        return write_prepared(
            control,
            self.storage,
            prepared,
            times,
            context=lambda: replace(context, attempt=self._become_writer()),
            committed=lambda snapshot: self._committed(snapshot, times),
            after=self._went_on_from,
            alive=alive,
        )

    def _note(self, committed: Committed) -> None:
        note_saved(committed.location)
        if self.control.is_main:
            logger.debug(
                "step %d saved in %.2f s, of which the caller waited %.2f s: %s",
                committed.step,
                committed.seconds,
                committed.stall_seconds,
                committed.location,
            )
            if self._on_commit is not None:
                self._on_commit(committed)

    def _context(self, control: Control) -> SaveContext:
        return save_context(control, self._run_id, self._strategy, self._config_xxh3, self._determinism)

    def _become_writer(self) -> int:
        self._process_writer.begin_save()
        return self.begin_attempt()

    def _committed(self, snapshot: Snapshot, times: SaveTimes) -> None:
        self._went_on_from = snapshot.step
        apply_retention(self.storage, self.retention, snapshot.step, snapshot.attempt)
        warn_of_saved(self.storage, snapshot.step, snapshot.non_finite)
        span_clock().committed(snapshot.step, times.sums)

    def save_if_due(self, step: int, state: Mapping[str, Any], **facts: Any) -> bool:
        """Save if `step` is a multiple of every_steps; return whether it did (collective).

        `facts` are the keywords of save(). An asynchronous manager only starts the save, as start_save().
        """
        if self.every_steps is None:
            raise ConfigError(
                "save_if_due has no interval: every_steps was not given",
                hint="CheckpointManager(directory, every_steps=100)",
            )
        if step <= 0 or step % self.every_steps:
            return False
        if self._asynchronous:
            self.start_save(step, state, **facts)
        else:
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
        self.wait()
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
        self.wait()
        control = self.control
        name = on_rank_zero(control, lambda: self._name_of(step))
        return self._restore(state, load_step_together(control, self.storage, str(name)))

    def _restore(self, state: Mapping[str, Any], loaded: LoadedCheckpoint) -> Restored:
        restored = restore_together(self.control, self.storage, state, loaded, self._determinism)
        self._went_on_from = restored.step
        return restored

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
