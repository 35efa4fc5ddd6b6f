"""The run directory of a job on Kubernetes: agent 0 creates it, as the launcher does not see the volume."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dist_train.agent import timeouts
from dist_train.agent.settings import Settings
from dist_train.agent.workers.graceful_stop import SIGNALS
from dist_train.errors import ConfigError, Preempted, RendezvousError
from dist_train.rundir import RunDir
from dist_train.rundir.records import write_bytes_atomic

_KEY_BYTES = 32
_POLL_S = 0.5


def prepare_run_dir(settings: Settings, join_by: float, note: Callable[[str], None]) -> None:
    """Create the run directory on node 0; on other nodes wait until it is there, or create their own.

    Raises ConfigError for a volume that cannot be written and for another config than the run's,
    RendezvousError after `join_by` (by time.monotonic), Preempted when a stop is asked for meanwhile.
    """
    if settings.node == 0 or settings.run_key:
        _create(settings)
    else:
        _wait_for_key(settings, join_by, note)
        _refuse_unwritable(settings.run)


def _create(settings: Settings) -> None:
    try:
        settings.run.create()
        _refuse_unwritable(settings.run)
        if settings.kind == "config":
            _store_config(Path(settings.value), settings.run)
        if not settings.run_key:
            _create_key(settings.run.control / "key")  # the last: when it is there, the others are too
    except OSError as error:
        raise _unwritable(settings.run, str(error)) from error
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise _unwritable(settings.run, str(error.__cause__)) from error
        raise


def _refuse_unwritable(run: RunDir) -> None:
    """Refuse also a directory that an earlier start created as another user."""
    for folder in (run.path, run.control, run.logs, run.attempts, run.checkpoints):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unwritable(run, f"{folder}: not writable by uid {os.getuid()}, groups {os.getgroups()}")


def _unwritable(run: RunDir, cause: str) -> ConfigError:
    return ConfigError(
        f"the run directory {run.path} cannot be written",
        cause=cause,
        hint="--fs-group GID of the volume, or an image whose user may write there; is a --run-volume given?",
    )


def _store_config(given: Path, run: RunDir) -> None:
    """Copy the config of the run's first start; a later start must have been given the same."""
    if given == run.config:
        return
    try:
        content = given.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the config {given} cannot be read: {error.strerror}",
            hint="mount the ConfigMap of the job there, as `dist-train launch --dry-run` shows it",
        ) from None
    if not run.config.exists():
        write_bytes_atomic(run.config, content)
    elif run.config.read_bytes() != content:
        raise ConfigError(
            f"{run.config} is not the config that this job was given ({given})",
            cause="another config is another run",
            hint="give the new run another --name",
        )


def _create_key(path: Path) -> None:
    """Write 32 random bytes, once: a complete key stays, one that a killed agent left truncated does not."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not _is_complete(path):
            write_bytes_atomic(path, secrets.token_bytes(_KEY_BYTES))
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _is_complete(path: Path) -> bool:
    try:
        return len(path.read_bytes()) >= _KEY_BYTES
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise ConfigError(
            f"the run key {path} cannot be read by uid {os.getuid()}",
            cause="node 0 made it as another user",
            hint="let all pods of the job run as one user",
        ) from error


def _wait_for_key(settings: Settings, join_by: float, note: Callable[[str], None]) -> None:
    path = settings.run.control / "key"
    began = note_at = time.monotonic()
    while not _exists(path):
        now = time.monotonic()
        if signal.sigpending() & SIGNALS:
            raise Preempted(f"node {settings.node} was stopped before node 0 had made {settings.run.path}")
        if now >= join_by:
            raise RendezvousError(
                f"node 0 has not made {path} in {now - began:.0f} s",
                cause="its pod has not started, or the run directory is not on one volume of all pods",
                hint="see the pod of node 0; --run-volume pvc/NAME gives all pods one volume",
            )
        if now >= note_at:
            note(f"node {settings.node} waits for node 0 to make {path}, since {now - began:.0f} s")
            note_at = now + timeouts.MEMBERSHIP_CHECK_S
        time.sleep(_POLL_S)


def _exists(path: Path) -> bool:
    try:
        os.listdir(path.parent)  # NFS caches that a file was absent; listing asks the server again
    except OSError:
        pass
    return _is_complete(path)
