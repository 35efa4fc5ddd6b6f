"""Write down where a run's checkpoints are, and which there are, for all that reads the run directory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.rundir import RunDir
from dist_train.rundir.remote_checkpoints import write_remote

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteRecord:
    """Rank 0's record of checkpoints at a URL.

    Args:
        manager: of the run.
        run_dir: of the run.
        is_remote: the checkpoints are at a URL; else there is no record.
    """

    manager: CheckpointManager
    run_dir: RunDir
    is_remote: bool

    def note(self) -> None:
        """Write the steps that there are now; a store that does not answer is noted at the next save."""
        try:
            if self.is_remote:
                write_remote(self.run_dir, self.manager.storage.location, self.manager.steps())
            else:
                self.run_dir.remote_checkpoints.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("which checkpoints there are is not written down: %s", error)
