"""The run directory: where each record lies (README names every file)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dist_train.errors import ConfigError


@dataclass(frozen=True)
class RunDir:
    """Paths inside one run's directory; nothing is created by looking."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config; written by the launcher."""
        return self.path / "config.yaml"

    @property
    def job(self) -> Path:
        """A directory is a run once this file exists; written by the launcher."""
        return self.path / "job.json"

    @property
    def plan(self) -> Path:
        """The bytes that were submitted."""
        return self.path / "plan"

    @property
    def lease(self) -> Path:
        """Host, pid and heartbeat of the one live owner; written by agent 0."""
        return self.path / "lease"

    @property
    def events(self) -> Path:
        """What happened, a JSON line each; written by agent 0."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Training and evaluation records; written by rank 0."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """How the run ended well; written by rank 0."""
        return self.path / "result.json"

    @property
    def failure(self) -> Path:
        """Why the run failed; written by agent 0."""
        return self.path / "failure.json"

    @property
    def checkpoints(self) -> Path:
        """step-<n>/, fence.json and quarantine/; written by rank 0."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """attempt-<k>/rank-<r>.log and node-<n>.log."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """Event files; written by rank 0."""
        return self.path / "tensorboard"

    @property
    def control(self) -> Path:
        """Verdicts, stop files, the run key (0600)."""
        return self.path / "control"

    @property
    def secrets(self) -> Path:
        """Values of --secret (0600) for launchers whose nodes do not inherit them; gone when the run ends."""
        return self.control / "secrets"

    @property
    def attempts(self) -> Path:
        """One folder per attempt, made exclusively by agent 0: this numbers the attempts."""
        return self.path / "attempts"

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.job.exists()

    def create(self) -> None:
        """Make the directory and its folders (0700); raises ConfigError where that is impossible."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.control, self.logs, self.attempts, self.checkpoints):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def begin_attempt(self) -> int:
        """Take the next attempt number (0, 1, …) by an exclusive mkdir."""
        number = 1 + max((int(p.name) for p in self.attempts.iterdir() if p.name.isdigit()), default=-1)
        while True:
            try:
                (self.attempts / str(number)).mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return number

    def attempt_devices(self, attempt: int) -> Path:
        """Which GPU each rank of an attempt computes on; written by rank 0."""
        return self.attempts / str(attempt) / "devices.json"

    def attempt_logs(self, attempt: int) -> Path:
        """The folder of one attempt's log files."""
        return self.logs / f"attempt-{attempt}"


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error for a run directory that cannot be written."""
    return ConfigError(
        f"the run directory {path} cannot be written: {os.strerror(error.errno or 0)}",
        cause=f"{error.filename or path}",
        mend="give another one with --run-dir DIR",
    )


def take_free_name(root: Path, stem: str) -> Path:
    """`root/stem-1`, `stem-2`, … : the first that an atomic mkdir can make."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            candidate = root / f"{stem}-{number}"
            try:
                candidate.mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            except FileNotFoundError:  # a launch that was refused took its empty root away again
                root.mkdir(parents=True, exist_ok=True)
            else:
                return candidate
    except OSError as error:
        raise unwritable(root, error) from error
