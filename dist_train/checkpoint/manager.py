"""CheckpointManager: save, resume, keep. Every method that moves state is collective."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dist_train.checkpoint.agreement import on_every_rank, on_rank_zero
from dist_train.checkpoint.draft import Facts, make_draft
from dist_train.checkpoint.fence import begin_attempt
from dist_train.checkpoint.layout import MANIFEST, step_directories, step_name
from dist_train.checkpoint.locate import newest_good, open_exactly
from dist_train.checkpoint.owner import current_control, determinism_facts, run_seed, who_writes
from dist_train.checkpoint.perrank import gather_per_rank, own_tensors
from dist_train.checkpoint.position import DataPosition, identity, position_from
from dist_train.checkpoint.reader import Loaded, read_checkpoint
from dist_train.checkpoint.records import Committed, Restored
from dist_train.checkpoint.replicas import differing_buffers
from dist_train.checkpoint.restore import apply, apply_buffers, check_fits
from dist_train.checkpoint.retention import Retention, apply_retention
from dist_train.checkpoint.state import Collected, collect
from dist_train.checkpoint.streams import apply_streams, check_streams
from dist_train.checkpoint.verify import Report, verify_checkpoint
from dist_train.checkpoint.writer import write_checkpoint, write_failed
from dist_train.errors import CheckpointError, ConfigError, NotFoundError

if TYPE_CHECKING:
    from dist_train.distributed.control import Control, JsonValue

logger = logging.getLogger(__name__)


class CheckpointManager:
    """Checkpoints of one run in one directory.

    `state` maps names to modules (wrapped or not), optimizers, anything with state_dict() and
    load_state_dict(), tensors and plain values. Parameters and optimizer state go by name, random streams
    of every rank are saved and restored unasked, and nothing is pickled.

    Args:
        directory: made at the first save.
        keep_last: the newest checkpoints that stay; two stay in any case.
        every_steps: for save_if_due.
        keep_best: this many with the best scores stay besides.
        best_mode: whether a small or a large score is better.
        control: all ranks; default the current run's.
        run_id: default as the agent said.
        attempt: default as the agent said; without one, the next free number is taken at the first save, so
            that a process that only reads never takes a directory over.
        config_xxh3: hash of the run's config, for the manifest.
        strategy: its name, for the manifest.
        determinism: what the bits depend on, for the manifest; default found here.
        on_commit: called on rank 0 after each commit.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep_last: int = 3,
        every_steps: int | None = None,
        keep_best: int = 0,
        best_mode: Literal["min", "max"] = "min",
        control: Control | None = None,
        run_id: str = "",
        attempt: int = 0,
        config_xxh3: str = "",
        strategy: str = "single",
        determinism: Mapping[str, JsonValue] | None = None,
        on_commit: Callable[[Committed], None] | None = None,
    ) -> None:
        if keep_last < 1 or keep_best < 0 or (every_steps is not None and every_steps < 1):
            raise ConfigError(
                f"keep_last={keep_last}, keep_best={keep_best}, every_steps={every_steps}: "
                "these count checkpoints and steps"
            )
        if best_mode not in ("min", "max"):
            raise ConfigError(f"best_mode={best_mode!r}", mend="use 'min' or 'max'")
        self.directory = Path(directory).absolute()
        self.every_steps = every_steps
        self.retention = Retention(keep_last, keep_best, best_mode)
        self._given_control = control
        self._run_id, self._attempt = who_writes(run_id, attempt)
        self._numbered = self._attempt is not None
        self._begun = False
        self._config_xxh3, self._strategy = config_xxh3, strategy
        self._determinism = determinism
        self._on_commit = on_commit

    @property
    def control(self) -> Control:
        """All ranks: the group that was given, else the current run's."""
        return self._given_control if self._given_control is not None else current_control()

    def begin_attempt(self) -> int:
        """Take the directory over from older attempts: sweep their leftovers, write fence.json.

        Called by load_latest and save; on rank 0 only, not collective. The number of the attempt.

        Raises:
            CheckpointError: a newer attempt owns the directory.
            CheckpointWriteError: the directory cannot be written.
        """
        if not self._begun or self._attempt is None:
            try:
                self._attempt = begin_attempt(self.directory, self._attempt)
            except OSError as error:
                raise write_failed(error, self.directory, "fence.json") from error
            self._begun = True
        return self._attempt

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
            data: the loader's state_dict(). Without it, the one loader in `state` tells data and position.
            epoch: whole epochs done.
            samples_in_epoch: samples of this epoch whose step is done.
            samples_total: samples since the start.
            score: for keep_best.

        Raises:
            CheckpointError: something in `state` cannot be stored.
            ReplicaMismatch: ranks do not hold the same state; nothing is committed.
            CheckpointWriteError: nothing was committed, older checkpoints stay.
        """
        started = time.perf_counter()
        control = self.control
        found = on_every_rank(control, lambda: collect(state))
        differing = differing_buffers(control, step, found)
        own = on_every_rank(control, lambda: own_tensors(found, control.rank, differing))
        per_rank = gather_per_rank(control, own)
        if data is None and not (epoch or samples_in_epoch or samples_total):
            at = position_from(found.entries)
        else:
            at = DataPosition(identity(data or {}), epoch, samples_in_epoch, samples_total)
        answer = on_rank_zero(control, lambda: self._write(step, found, per_rank, at, score))
        assert isinstance(answer, dict)
        hashes = {name: str(value) for name, value in answer.items()}
        path = self.directory / step_name(step)
        committed = Committed(step=step, path=path, seconds=time.perf_counter() - started, **hashes)
        if control.is_main:
            logger.debug("step %s saved in %.2f s: %s", step, committed.seconds, path)
            if self._on_commit is not None:
                self._on_commit(committed)
        return committed

    def _write(
        self, step: int, found: Collected, per_rank: Mapping[str, Any], at: DataPosition, score: float | None
    ) -> JsonValue:
        attempt = self.begin_attempt()
        facts = Facts(
            run_id=self._run_id,
            attempt=attempt,
            world_size=self.control.world_size,
            strategy=self._strategy,
            config_xxh3=self._config_xxh3,
            determinism=determinism_facts() if self._determinism is None else self._determinism,
            seed=run_seed(),
        )
        manifest = write_checkpoint(self.directory, make_draft(step, found, per_rank, facts, at, score))
        apply_retention(self.directory, self.retention, step, attempt)
        names = ("state_hash", "weights_hash", "self_hash")
        return {name: getattr(manifest, name) for name in names}

    def save_if_due(self, step: int, state: Mapping[str, Any], **facts: Any) -> bool:
        """Save if `step` is a multiple of every_steps; whether it did. `facts` are save()'s (collective)."""
        if self.every_steps is None:
            raise ConfigError(
                "save_if_due does not know when: every_steps was not given",
                mend="CheckpointManager(directory, every_steps=100)",
            )
        if step <= 0 or step % self.every_steps:
            return False
        self.save(step, state, **facts)
        return True

    def load_latest(self, state: Mapping[str, Any]) -> Restored | None:
        """Restore the newest whole checkpoint; None where there is none yet (collective).

        Damaged ones are moved to quarantine/ and named in a warning. Random streams are restored last, so
        call this after everything that draws from them.

        Raises:
            CheckpointError: it does not fit `state`, or checkpoints exist and none of them is whole.
        """
        control = self.control
        chosen: list[Loaded] = []

        def choose() -> JsonValue:
            if self._numbered:
                self.begin_attempt()
            found = newest_good(self.directory)
            if found is None:
                return None
            chosen.append(found)
            return [found.path.name, found.manifest.self_hash]

        answer = on_rank_zero(control, choose)
        if answer is None:
            if control.is_main:
                logger.debug("no checkpoint in %s: beginning at step 0", self.directory)
            return None
        return self._restore(state, answer, chosen)

    def load(self, step: int, state: Mapping[str, Any]) -> Restored:
        """Restore one step (collective).

        Raises:
            NotFoundError: there is no such step; CheckpointError: it is damaged or does not fit.
        """
        chosen: list[Loaded] = []

        def open_it() -> JsonValue:
            chosen.append(read_checkpoint(self._path_of(step)))
            return [chosen[0].path.name, chosen[0].manifest.self_hash]

        return self._restore(state, on_rank_zero(self.control, open_it), chosen)

    def _restore(self, state: Mapping[str, Any], answer: JsonValue, chosen: list[Loaded]) -> Restored:
        control = self.control
        rank, world_size = control.rank, control.world_size
        assert isinstance(answer, list)
        name, self_hash = map(str, answer)

        def read_and_check() -> Loaded:
            loaded = chosen[0] if chosen else open_exactly(self.directory / name, self_hash)
            check_fits(state, loaded)
            check_streams(loaded, rank, world_size)
            return loaded

        loaded = on_every_rank(control, read_and_check)
        apply(state, loaded)
        apply_buffers(state, loaded, rank, loaded.manifest.world_size == world_size)
        if control.is_main:
            self._tell_differences(loaded)
        manifest = loaded.manifest
        return Restored(
            step=manifest.step,
            epoch=manifest.epoch,
            samples_in_epoch=manifest.samples_in_epoch,
            samples_total=manifest.samples_total,
            world_size=manifest.world_size,
            path=loaded.path,
            rng_restored=apply_streams(loaded, rank, world_size),
        )

    def _tell_differences(self, loaded: Loaded) -> None:
        here = determinism_facts() if self._determinism is None else dict(self._determinism)
        there = loaded.manifest.determinism
        logger.debug("restored %s", loaded.path)
        for key in sorted(set(here) & set(there)):
            if here[key] != there[key]:
                logger.warning(
                    "%s is %s here and was %s at the save: equal bits are not claimed",
                    key,
                    here[key],
                    there[key],
                )

    def steps(self) -> list[int]:
        """The committed steps, oldest first; their data is not verified here."""
        return [step for step, path in step_directories(self.directory).items() if (path / MANIFEST).exists()]

    def verify(self, step: int) -> Report:
        """Read every byte of one step and compare it.

        Raises:
            NotFoundError: there is no such step; CheckpointError: it is damaged, naming file and block.
        """
        report = verify_checkpoint(self._path_of(step))
        if not report.ok:
            raise CheckpointError(f"{report.path.name}: " + "; ".join(report.problems))
        return report

    def _path_of(self, step: int) -> Path:
        path = self.directory / step_name(step)
        if not path.is_dir():
            there = ", ".join(map(str, self.steps())) or "none"
            raise NotFoundError(f"no checkpoint of step {step} in {self.directory}; there is {there}")
        return path
