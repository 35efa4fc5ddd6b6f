"""Defaults of a manager: those of the current run, or of the agent's environment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as torch_dist

from dist_train.checkpoint.state.snapshot import SaveContext
from dist_train.distributed.control_group import Control
from dist_train.distributed.determinism import facts
from dist_train.distributed.place import Place
from dist_train.distributed.run import current
from dist_train.env import RankInfo, WorkerEnv
from dist_train.errors import ConfigError
from dist_train.rundir.times.span_clock import span_clock

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

logger = logging.getLogger(__name__)


def current_control() -> Control:
    """Return the current run's control group; that of a single process where there is no run.

    Raises:
        ConfigError: there are several ranks and no run: each would take itself for the only writer.
    """
    run = current()
    if run is not None:
        return run.control
    grouped = torch_dist.is_available() and torch_dist.is_initialized()
    world_size = torch_dist.get_world_size() if grouped else RankInfo.from_env().world_size
    if world_size > 1:
        raise ConfigError(
            f"this is one of {world_size} ranks, but there is no run and so no control group",
            cause="each rank would take itself for the only writer",
            hint="call dt.init() first, or give the manager control=",
        )
    return Control()


def run_and_attempt(run_id: str, attempt: int | None) -> tuple[str, int | None]:
    """Return run id and attempt number; None where neither the caller nor an agent gave a number."""
    worker = WorkerEnv.from_env()
    if run_id or attempt is not None or worker is None:
        return run_id, attempt
    return worker.run_id, worker.attempt


def meet(control: Control, what: str, number: int = 0) -> None:
    """Wait for all ranks of the current run: one that does not come is named (collective).

    A collective would be matched with whatever the other ranks do, and wait for its time-out.

    Args:
        control: that of the manager; another one than the run's does not meet.
        what: the call, for the error.
        number: must be equal on all ranks: the step.

    Raises:
        ConfigError: on the ranks that came: naming those that did not, or that gave another number.
    """
    run = current()
    if run is None or run.exchange is None or run.control is not control:
        return

    def same(numbers: list[JsonValue]) -> JsonValue:
        if len(set(map(str, numbers))) > 1:
            listed = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(numbers[:8]))
            raise ConfigError(
                f"{what}: the ranks are at different steps ({listed})",
                cause="they have not made the same number of steps",
            )
        return None

    run.exchange.exchange("checkpoint", number, same, what)


def place_of(control: Control) -> Place:
    """Return the place of this rank in the current run; without one, each rank has the whole model."""
    run = current()
    if run is not None and run.control is control:
        return run.place
    return Place.of_replica(control.rank, control.world_size)


def save_context(
    control: Control,
    run_id: str,
    strategy: str,
    config_xxh3: str,
    determinism: Mapping[str, JsonValue] | None,
) -> SaveContext:
    """Return what a manifest holds besides the state; the attempt is not known yet.

    `determinism` None: that of this process.
    """
    place, run = place_of(control), current()
    return SaveContext(
        run_id=run_id,
        attempt=0,
        world_size=control.world_size,
        mesh=place.mesh,
        data_size=place.data_size,
        strategy=strategy,
        config_xxh3=config_xxh3,
        determinism=determinism_facts() if determinism is None else determinism,
        seed=None if run is None else run.seed,
    )


def determinism_facts() -> dict[str, JsonValue]:
    """Return what the bits depend on in this process."""
    run = current()
    return facts(torch.device("cpu") if run is None else run.device)


def settle_finite_check() -> None:
    """Wait for what the current run's check_finite was given: a save must not come before its answer.

    Raises:
        NonFiniteError: on all ranks, for a loss or gradient that is not finite.
    """
    run = current()
    if run is not None:
        run.finite_check.settle()


def note_saved(location: str) -> None:
    """A checkpoint was committed: for the error of check_finite."""
    _note_newest(location)


def note_restored(step: int | None, location: str = "") -> None:
    """A checkpoint was loaded; step None: there was none."""
    span_clock().restored(step)
    if step is not None:
        _note_newest(location)


def _note_newest(location: str) -> None:
    run = current()
    if run is not None:
        run.finite_check.newest_checkpoint = location


# Facts that a record has only where they differ from what is usual.
_USUAL: dict[str, JsonValue] = {"compile": "not used"}


def warn_of_differences(given: Mapping[str, JsonValue] | None, there: Mapping[str, JsonValue]) -> None:
    """Log what the bits depend on and differs from the process that saved; `given` None: here."""
    here = determinism_facts() if given is None else given
    for key in sorted((here.keys() & there.keys()) | (_USUAL.keys() & (here.keys() | there.keys()))):
        now, then = here.get(key, _USUAL.get(key)), there.get(key, _USUAL.get(key))
        if now != then:
            logger.warning("%s is %s here and was %s at the save: equal bits are not claimed", key, now, then)
