"""The run as one rank sees it: its facts, its control group, and how it is closed."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, overload

import torch
from torch import nn

from dist_train.distributed.control_group import Control, JsonValue
from dist_train.distributed.evaluation_buffers import EvaluationBuffers
from dist_train.distributed.gather_rows import gather_rows
from dist_train.distributed.global_mean import Number, global_mean
from dist_train.distributed.gradient_weights.batch_weight import BatchWeight
from dist_train.distributed.gradient_weights.gradients import Gradients
from dist_train.distributed.gradient_weights.units import Loss, Units
from dist_train.distributed.group_teardown.teardown import Teardown
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.distributed.loop_finite_check import LoopFiniteCheck
from dist_train.distributed.place import Place
from dist_train.distributed.seeding import RankSeeding
from dist_train.env import RankInfo
from dist_train.errors import NotFoundError, UsageError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import append_metric

logger = logging.getLogger(__name__)

# How long a finished rank waits for the others. At the interpreter's exit it is shorter: there a
# sys.exit(3) cannot be told from a success, and the agent must learn of it in time.
_BARRIER_S = 10.0
_BARRIER_AT_EXIT_S = 5.0

_current: Run | None = None


def current() -> Run | None:
    """The run that dt.init started in this process, until it is closed."""
    return _current


class Run:
    """Facts and control group of one rank; a context manager that closes the process groups in order.

    Args:
        info: this rank's facts.
        device: the device that is bound.
        control: collectives for small values.
        seed: the run's seed, equal on all ranks.
        directory: the run directory, None for a script outside a run.
        run_id: the run's id under our agent.
        attempt: number of the attempt under our agent.
        on_close: called once by close().
        vote: the collective behind should_stop().
        progress: called at every progress(), for the watchdog and the node's stop file.
        rank_seeding: gives this rank RNG states of its own, once.
        exchange: brings small values of all ranks together by the store; None with one process.
        keep_alive: called at every keep_alive(), for the watchdog.
    """

    def __init__(
        self,
        info: RankInfo,
        device: torch.device,
        *,
        control: Control | None = None,
        seed: int = 0,
        directory: Path | None = None,
        run_id: str = "",
        attempt: int = 0,
        on_close: Callable[[Teardown], None] | None = None,
        vote: Callable[[], bool] | None = None,
        progress: Callable[[str, int | None], None] | None = None,
        rank_seeding: RankSeeding | None = None,
        exchange: KeyedExchange | None = None,
        keep_alive: Callable[[], None] | None = None,
    ) -> None:
        self.info = info
        self.device = device
        self.control = control if control is not None else Control()
        self.seed = seed
        self._directory = directory
        self.run_id = run_id
        self.attempt = attempt
        self.exchange = exchange
        self.batch_weight = BatchWeight()
        self.rank_seeding = rank_seeding if rank_seeding is not None else RankSeeding()
        self.gradients = Gradients(self.batch_weight, info.world_size, device)
        self.evaluation_buffers = EvaluationBuffers(exchange)
        self.finite_check = LoopFiniteCheck(self.control)
        self._place = Place.of_replica(info.rank, info.world_size)
        self._place_is_used = False
        self.closed = False
        self._on_close = on_close
        self._vote = vote
        self._progress = progress
        self._keep_alive = keep_alive
        self._at_close: list[Callable[[bool], None]] = []
        self._pid = os.getpid()

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.info.rank

    @property
    def local_rank(self) -> int:
        """This process's rank on its node."""
        return self.info.local_rank

    @property
    def node_rank(self) -> int:
        """This node's number."""
        return self.info.node_rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.info.world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.info.num_nodes

    @property
    def place(self) -> Place:
        """Where this rank stands in the mesh; until a strategy has chosen, each rank has its own data."""
        self._place_is_used = True
        return self._place

    def take_place(self, place: Place) -> None:
        """Take the place that the strategy has chosen; `dt.prepare` does it.

        Raises:
            UsageError: something was done by another place before, or another model has another.
        """
        before, self._place = self._place, place
        data = (before.data_rank, before.data_size, before.counts)
        if self._place_is_used and data != (place.data_rank, place.data_size, place.counts):
            self._place = before
            raise UsageError(
                f"this rank has share {before.data_rank} of {before.data_size} of the data, and the strategy "
                f"of this model gives it share {place.data_rank} of {place.data_size}",
                cause="a loader, a checkpoint or run.mean came before the model was prepared, or two models "
                "have unlike strategies",
                hint="dt.prepare(model, strategy=...) before dt.loader(...), load_latest() and run.mean(); "
                "one strategy for all models",
            )
        self._place_is_used = True
        self.gradients.take_place(place)

    @property
    def dir(self) -> Path:
        """The run directory.

        Raises:
            NotFoundError: the script was not started by `dist-train launch`.
        """
        if self._directory is None:
            script = shlex.join(sys.argv) if "".join(sys.argv[:1]).endswith(".py") else "SCRIPT.py"
            raise NotFoundError(
                "this process has no run directory",
                cause="`dist-train launch` makes one, and did not start this process",
                hint=f"dist-train launch {script}\n"
                '         or name a folder in the script: CheckpointManager("checkpoints")',
            )
        return self._directory

    @property
    def is_main(self) -> bool:
        """True on rank 0: for what must happen once per job."""
        return self.info.rank == 0

    def log(self, *, step: int, **values: JsonValue | torch.Tensor) -> None:
        """Record values of a step; rank 0 writes them, the others return at once.

        Args:
            step: number of optimizer steps done.
            values: numbers, strings or one-element tensors.
        """
        if not self.is_main:
            return
        plain = {
            name: value.item() if isinstance(value, torch.Tensor) else value for name, value in values.items()
        }
        if self._directory is None:
            logger.info("step %d %s", step, " ".join(f"{name}={value}" for name, value in plain.items()))
        else:
            append_metric(RunDir(self.dir).metrics, {"kind": "train", "step": step, **plain})

    def seed_this_rank(self) -> None:
        """Give this rank random numbers of its own, once; `dt.prepare` does it.

        Until then all ranks draw alike if `dt.init` was given a seed. For a model that is wrapped by
        hand: call it before training, else dropout is the same on all ranks.
        """
        self.rank_seeding.begin(self.place.data_rank)

    @overload
    def mean(self, values: Mapping[str, Number], count: Number | None = None) -> dict[str, float]: ...

    @overload
    def mean(self, values: Number, count: Number | None = None) -> float: ...

    def mean(
        self, values: Number | Mapping[str, Number], count: Number | None = None
    ) -> float | dict[str, float]:
        """The mean over all samples of all ranks, equal on all of them; collective.

        Never a mean of the ranks' means: these have different numbers of samples. A rank without
        samples calls it too, with count 0 or an empty tensor.

        Args:
            values: with `count`, a SUM over this rank's samples (a number or a tensor of one element);
                without, a tensor with one value for each of them. Or a dict of such.
            count: samples, or tokens, that each sum stands for.

        Raises:
            ConfigError: a single number without a count; no rank has a sample; names differ between
                ranks; or a rank does not come: it is named.
        """
        return global_mean(self.exchange, values, count, self.place.counts)

    def gather(self, values: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
        """The rows of all ranks' tensors, on every rank; collective.

        The ranks may have unequally many rows, or none. Rows come in rank order: all outputs of one
        pass over an evaluation loader are in the order of its data set.

        Args:
            values: a tensor, or a list of them (one for each batch), joined along their first dimension;
                an empty list on a rank without samples.

        Returns:
            on this rank's device, without gradients.

        Raises:
            ConfigError: dtypes or the other dimensions differ; no rank has a tensor; a rank does not
                come: it is named.
        """
        return gather_rows(self.control, self.exchange, values, self.device, self.place.counts)

    def backward(self, loss_sum: Loss, *, units: Units, retain_graph: bool = False) -> None:
        """Add the gradient of the mean over all units, of all ranks and calls since the last optimizer step.

        Collective, in place of loss.backward(): after each call `.grad` is the sum of d(loss_sum) over
        ranks and calls, divided by the sum of their units, until zero_grad or a step. Ranks may have
        unequal numbers of units, also 0: a rank whose batch is a placeholder calls it too.

        Args:
            loss_sum: sum (not mean) of the loss over this rank's units, one element. Several losses:
                each is divided by the sum of its own units; then one call per optimizer step.
            units: samples or tokens that it was summed over; a tensor on the device, such as
                (labels != -100).sum(), is not waited for.
            retain_graph: as torch's.

        Raises:
            UsageError: no prepared module, a loss that is not one number, or a plain loss.backward() came
                between two calls.
        """
        self.gradients.backward(loss_sum, units, retain_graph)

    def should_stop(self) -> bool:
        """Collective: True on all ranks at the same call, once a stop was requested."""
        return self._vote() if self._vote is not None else False

    def check_finite(
        self, *losses: torch.Tensor, model: nn.Module | None = None, step: int | None = None
    ) -> None:
        """Raise NonFiniteError, on all ranks at the same call, after a loss that was nan or infinite on any.

        Collective: every rank calls it equally often, between `backward()` and `optimizer.step()`. The host
        does not wait for the device: the error comes up to 17 calls late, but before the next save of a
        CheckpointManager, so that the newest checkpoint is the last finite one.

        Args:
            losses: tensors of this rank.
            model: its gradients are looked at, too; they are exchanged already.
            step: number of the step, for the error, which else names the number of the call.
        """
        self.finite_check.see(losses, model, step)

    def all_finite(self, *losses: torch.Tensor, model: nn.Module | None = None) -> bool:
        """Whether the losses, and the model's gradients, are finite on all ranks: the same answer on each.

        Collective. The host waits for the device and for all ranks, at every call:
        `if run.all_finite(loss, model=model): optimizer.step()` leaves such a step out.
        """
        return self.finite_check.ask(losses, model)

    def progress(self, what: str, step: int | None = None) -> None:
        """Report progress: from the first call on, too long a pause between two calls ends this rank.

        Args:
            what: what the run is doing ("step 17", "evaluation").
            step: optimizer steps done, if that has changed.
        """
        if self._progress is not None:
            self._progress(what, step)

    def keep_alive(self) -> None:
        """Go on being alive in something long; unlike progress(), this does not begin the watch."""
        if self._keep_alive is not None:
            self._keep_alive()

    def at_close(self, leave: Callable[[bool], None]) -> None:
        """Call `leave` before the process groups are left, with True after a failure; it may raise then."""
        self._at_close.append(leave)

    def make_current(self) -> None:
        """Make this the run that current() returns."""
        global _current
        _current = self

    def close(self, *, failed: bool = False) -> None:
        """Leave the process groups together with the other ranks; later calls do nothing.

        Args:
            failed: do not wait for the other ranks, which may be dead or waiting.

        Raises:
            NonFiniteError: what check_finite was given last on this rank is not finite.
            CheckpointWriteError: the last save, which was written in the background, has failed.
        """
        with ExitStack() as rest:
            rest.callback(self._close, Teardown(failed, _BARRIER_S))
            self.settle(failed=failed)

    def settle(self, *, failed: bool = False) -> None:
        """End what goes on beside the loop, and raise what it has not told yet; close() does it.

        Args:
            failed: wait for a short time only, and raise nothing: other ranks may be dead.

        Raises:
            NonFiniteError, CheckpointWriteError: as close().
        """
        # A forked child inherits the object but not its threads.
        if self.closed or os.getpid() != self._pid:
            return
        with ExitStack() as rest:
            for leave in self._at_close:
                rest.callback(leave, failed)
            if not failed:
                self.finite_check.end()

    def close_at_exit(self) -> None:
        """Close the run from atexit; after an uncaught exception without waiting for other ranks."""
        failed = getattr(sys, "last_value", None) is not None
        try:
            self.settle(failed=failed)
        except Exception as error:  # the exit code is given by now; under launch it is the error's
            logger.error("%s", error)
        self._close(Teardown(failed, _BARRIER_AT_EXIT_S, exiting=True))

    def _close(self, how: Teardown) -> None:
        global _current
        # A forked child inherits the object but not the group's threads.
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        if _current is self:
            _current = None
        self.gradients.close()
        if self._on_close is not None:
            self._on_close(how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        good_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        self.close(failed=error is not None and not good_exit)
