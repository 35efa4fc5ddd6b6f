"""The saves of one manager that are written in the background: at most one at a time."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dist_train.checkpoint.background.pending_save import PendingSave
from dist_train.checkpoint.background.staging_buffer import StagingBuffer
from dist_train.checkpoint.save_results import Committed
from dist_train.distributed.run import Run, current

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control

logger = logging.getLogger(__name__)

# After a failure of this rank: others may be dead, and then nothing comes of the save.
FAILED_WAIT_S = 5.0


class BackgroundSaves:
    """What a manager has under way.

    Attributes:
        buffer: holds the copies that are being written.
    """

    def __init__(self) -> None:
        self.buffer = StagingBuffer()
        self._pending: PendingSave | None = None
        self._of: Control | None = None
        self._control: Control | None = None
        self._run: Run | None = None
        self._is_at_exit = False

    def control_beside(self, control: Control) -> Control:
        """The control by which the threads agree; its group is made at the first call (collective)."""
        if self._control is None or self._of is not control:
            self._control, self._of = control.with_own_group(), control
        return self._control

    def begin(self, pending: PendingSave, leave: Callable[[bool], None]) -> None:
        """Keep what was started; `leave` is called when its run, or else the process, ends.

        Args:
            pending: was started.
            leave: calls `finish`, or `give_up` where it is given True.
        """
        self._pending = pending
        run = current()
        if run is not None and run.control is self._of:
            if run is not self._run:
                run.at_close(leave)
            self._run = run
        elif not self._is_at_exit:
            atexit.register(self._leave_at_exit, leave)
            self._is_at_exit = True

    def _leave_at_exit(self, leave: Callable[[bool], None]) -> None:
        try:
            leave(False)
        except Exception as error:  # the exit code is given by now
            logger.error("%s", error)

    def is_done_everywhere(self, control: Control) -> bool:
        """Whether a save was begun and has ended on all ranks (collective)."""
        if self._pending is None:
            return False
        return not control.max_int(int(not self._pending.is_done))

    def finish(self) -> Committed | None:
        """Wait until nothing is under way; return what was committed, None where nothing was begun.

        Raises:
            CheckpointError, CheckpointWriteError: the save has failed; raised once, on every rank.
        """
        pending = self._pending
        if pending is None or not pending.wait():
            return None
        self._pending = None
        return pending.result()

    def give_up(self) -> None:
        """Wait for a short time, after this rank has failed; what is not committed by then is not there."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if not pending.wait(FAILED_WAIT_S):
            logger.warning("step %d was still being saved: it may not be there", pending.step)
            return
        try:
            logger.info("step %d is saved: %s", pending.step, pending.result().location)
        except Exception as error:
            logger.error("%s", error)
