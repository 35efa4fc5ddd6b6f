"""The run as a rank sees it: its facts, its control group, its end."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from dist_train.distributed.control import Control, JsonValue
from dist_train.distributed.share import ShareBox
from dist_train.distributed.teardown import Leaving
from dist_train.env import RankInfo
from dist_train.errors import NotFoundError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics import append_metric

logger = logging.getLogger(__name__)

# How long a rank that is done waits for the others. At the interpreter's end it is shorter: there
# a sys.exit(3) cannot be told from a good end, and the news of it must not be late.
_BARRIER_S = 10.0
_BARRIER_AT_EXIT_S = 5.0

_current: Run | None = None


def current() -> Run | None:
    """The run that dt.init started in this process, until it is closed."""
    return _current


class Run:
    """Facts, control group and share of one rank; a context manager that leaves in order.

    Args:
        info: who this rank is.
        device: the bound device.
        control: collectives for small values.
        seed: the run's seed, equal on all ranks.
        directory: the run directory, None for a script outside a run.
        run_id: the run's id under our agent.
        attempt: number of the attempt under our agent.
        leave: called once by close().
        vote: the collective behind should_stop().
        progress: told of every progress(): a watchdog, the agent's board.
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
        leave: Callable[[Leaving], None] | None = None,
        vote: Callable[[], bool] | None = None,
        progress: Callable[[str, int | None], None] | None = None,
    ) -> None:
        self.info = info
        self.device = device
        self.control = control if control is not None else Control()
        self.seed = seed
        self._directory = directory
        self.run_id = run_id
        self.attempt = attempt
        self.share = ShareBox()
        self.closed = False
        self._leave = leave
        self._vote = vote
        self._progress = progress
        self._pid = os.getpid()

    @property
    def rank(self) -> int:
        """This process's number among all ranks."""
        return self.info.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its node."""
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
    def dir(self) -> Path:
        """The run directory.

        Raises:
            NotFoundError: nobody launched this script, so it has none.
        """
        if self._directory is None:
            script = shlex.join(sys.argv) if "".join(sys.argv[:1]).endswith(".py") else "SCRIPT.py"
            raise NotFoundError(
                "this process has no run directory",
                cause="`dist-train launch` makes one, and did not start this process",
                mend=f"dist-train launch {script}\n"
                '         or name a folder in the script: CheckpointManager("checkpoints")',
            )
        return self._directory

    @property
    def is_main(self) -> bool:
        """True on rank 0: for what must happen once in the job."""
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

    def should_stop(self) -> bool:
        """Collective: True on all ranks at the same call, once a stop is agreed."""
        return self._vote() if self._vote is not None else False

    def progress(self, what: str, step: int | None = None) -> None:
        """Say that this rank is alive: from the first call on, too long a silence ends it.

        Args:
            what: where the run is now ("step 17", "evaluation").
            step: optimizer steps done, where that is news.
        """
        if self._progress is not None:
            self._progress(what, step)

    def make_current(self) -> None:
        """Make this the run that current() gives."""
        global _current
        _current = self

    def close(self, *, failed: bool = False) -> None:
        """Leave the process groups together with the other ranks; later calls do nothing.

        Args:
            failed: leave alone and at once, since others may be dead or waiting.
        """
        self._close(Leaving(failed, _BARRIER_S))

    def close_at_exit(self) -> None:
        """What atexit calls: after an uncaught exception nobody is waited for."""
        failed = getattr(sys, "last_value", None) is not None
        self._close(Leaving(failed, _BARRIER_AT_EXIT_S, exiting=True))

    def _close(self, how: Leaving) -> None:
        global _current
        # A forked child inherits the object but not the group's threads.
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        if _current is self:
            _current = None
        if self._leave is not None:
            self._leave(how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        good_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        self.close(failed=error is not None and not good_exit)
