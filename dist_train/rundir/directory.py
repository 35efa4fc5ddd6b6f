"""The run directory: the path of each record (the README describes every file)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dist_train.errors import ConfigError


@dataclass(frozen=True)
class RunDir:
    """Paths inside one run's directory; reading them creates nothing."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config; written by the launcher."""
        return self.path / "config.yaml"

    @property
    def config_origins(self) -> Path:
        """Where each value of the config came from; written by the launcher."""
        return self.path / "config-origins.json"

    @property
    def job(self) -> Path:
        """A directory is a run once this file exists; written by the launcher."""
        return self.path / "job.json"

    @property
    def plan(self) -> Path:
        """What was submitted, byte for byte; written by the launcher."""
        return self.path / "plan"

    @property
    def lease(self) -> Path:
        """Host, pid and heartbeat of the one live owner; written by agent 0."""
        return self.path / "lease"

    @property
    def events(self) -> Path:
        """Events, one JSON line each; written by agent 0."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Training and evaluation records; written by rank 0."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """The result of a finished run; written by rank 0."""
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
    def remote_checkpoints(self) -> Path:
        """Where the checkpoints are if not here, and which there are; written by rank 0."""
        return self.checkpoints / "remote.json"

    @property
    def logs(self) -> Path:
        """attempt-<k>/rank-<r>.log and node-<n>.log."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """Event files; written by rank 0."""
        return self.path / "tensorboard"

    @property
    def profile(self) -> Path:
        """attempt-<k>/rank-<r>.trace.json.gz, of `launch --profile`; each written by its rank."""
        return self.path / "profile"

    @property
    def doctor(self) -> Path:
        """Of a job of `dist-train doctor`: node-<n>.json, peers-<n>.json by each node; report.json."""
        return self.path / "doctor"

    @property
    def control(self) -> Path:
        """Verdicts, stop files, the run key (0600)."""
        return self.path / "control"

    @property
    def secrets(self) -> Path:
        """Values of --secret (0600) for launchers whose nodes do not inherit them; removed at the end."""
        return self.control / "secrets"

    @property
    def cancel_request(self) -> Path:
        """Made by `dist-train cancel`, and seen by agent 0: save, stop, and stay ended."""
        return self.control / "cancel"

    @property
    def stacks_request(self) -> Path:
        """Touched by `dist-train stacks`, seen by agent 0: a new request is in control/stacks-<id>/."""
        return self.control / "stacks"

    def interrupted(self, job: str) -> Path:
        """Made by the launcher of `job` when Ctrl-C ends it, before it asks its agents to stop."""
        return self.control / f"interrupted-{job}"

    def lost_node(self, job: str) -> Path:
        """Made by the launcher of `job` for node 0: a node whose agent has ended."""
        return self.control / f"lost-node-{job}"

    @property
    def attempts(self) -> Path:
        """One folder per attempt; agent 0 takes the number by creating it exclusively."""
        return self.path / "attempts"

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.job.exists()

    def create(self) -> None:
        """Create the directory and its folders (0700); raises ConfigError if that is not possible."""
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

    def attempt_profile(self, attempt: int) -> Path:
        """The folder of one attempt's traces."""
        return self.profile / f"attempt-{attempt}"


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error for a run directory that cannot be written."""
    return ConfigError(
        f"the run directory {path} cannot be written: {os.strerror(error.errno or 0)}",
        cause=f"{error.filename or path}",
        hint="give another one with --run-dir DIR",
    )


def free_names(root: Path, stem: str) -> Iterator[Path]:
    """`root/stem-1`, `stem-2`, …, which may exist."""
    return (root / f"{stem}-{number}" for number in itertools.count(1))


def take_free_name(root: Path, stem: str) -> Path:
    """Make the first of `free_names` that an atomic mkdir can make."""
    candidates = free_names(root, stem)
    candidate = next(candidates)
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                candidate.mkdir(mode=0o700)
            except FileExistsError:
                candidate = next(candidates)
            except FileNotFoundError:  # a refused launch has just removed its empty root
                root.mkdir(parents=True, exist_ok=True)
            else:
                return candidate
    except OSError as error:
        raise unwritable(root, error) from error
