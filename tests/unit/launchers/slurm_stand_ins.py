"""Stand-ins for Slurm's commands, for answers that a cluster of one version never gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dist_train.jobs import JobSpec

Job = Callable[..., JobSpec]
SLURM = ("sbatch", "srun", "squeue", "scontrol", "sacct", "scancel")


@dataclass(frozen=True)
class Commands:
    """Bash scripts in a folder of PATH, which record their calls."""

    folder: Path

    def put(self, name: str, body: str) -> None:
        """Make a command."""
        path = self.folder / name
        note = f'printf "%s\\n" "{name} $*" >> {self.folder}/calls'
        path.write_text(f"#!/bin/bash\n{note}\n{body}\n")
        path.chmod(0o755)

    def put_all(self, body: str) -> None:
        """The same for each of Slurm's commands."""
        for name in SLURM:
            self.put(name, body)

    def says(self, name: str, text: str) -> None:
        """Make a command that prints this and ends well."""
        self.put(name, f"printf '%s' {_quoted(text)}")

    def refuses(self, name: str, text: str) -> None:
        """Make a command that prints this on stderr and exits with 1."""
        self.put(name, f"printf '%s\\n' {_quoted(text)} >&2; exit 1")

    @property
    def calls(self) -> list[str]:
        """Their calls, in order."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
