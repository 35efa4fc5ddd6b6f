"""Which runs `list` shows: by name, launcher and phase, and each is asked no more than it takes to tell."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from dist_train.cli.run.find_run import read_job
from dist_train.errors import ConfigError
from dist_train.rundir import RunDir


@dataclass(frozen=True)
class RunFilter:
    """What a run must be to be listed; None: anything.

    Args:
        name: a pattern as the shell has them: `digits-*`.
    """

    name: str | None = None
    launcher: str | None = None
    phase: str | None = None

    @property
    def is_set(self) -> bool:
        """Whether it leaves anything out."""
        return any((self.name, self.launcher, self.phase))

    def may_match(self, run: RunDir) -> bool:
        """By its name and its record alone, before any scheduler is asked."""
        if self.name is not None and not fnmatchcase(run.path.name, self.name):
            return False
        return self.launcher is None or _launcher(run) == self.launcher

    def matches_phase(self, phase: str) -> bool:
        """By its state."""
        return self.phase is None or self.phase == phase


def _launcher(run: RunDir) -> str | None:
    try:
        return str(read_job(run).get("launcher"))
    except (ConfigError, PermissionError):
        return None  # nobody knows which
