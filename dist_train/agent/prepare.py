"""The run directory of a job on Kubernetes: agent 0 makes what a launcher makes where it sees the volume."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dist_train.agent import bounds
from dist_train.agent.settings import Settings
from dist_train.agent.stopping import SIGNALS
from dist_train.errors import ConfigError, Preempted, RendezvousError
from dist_train.rundir import RunDir
from dist_train.rundir.records import write_bytes_atomic

_KEY_BYTES = 32
_POLL_S = 0.5


def prepare(told: Settings, join_by: float, say: Callable[[str], None]) -> None:
    """Node 0 makes the run directory, the others wait until it is there.

    Raises ConfigError for a volume that cannot be written and for another config than the run's,
    RendezvousError after `join_by` (by time.monotonic), Preempted when a stop is asked for meanwhile.
    """
    if told.node == 0:
        _make(told)
    else:
        _wait_for_key(told, join_by, say)
        _refuse_unwritable(told.run)


def _make(told: Settings) -> None:
    try:
        told.run.create()
        _refuse_unwritable(told.run)
        if told.kind == "config":
            _take_config(Path(told.value), told.run)
        _make_key(told.run.control / "key")  # the last: who sees it sees the others too
    except OSError as error:
        raise _unwritable(told.run, str(error)) from error
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise _unwritable(told.run, str(error.__cause__)) from error
        raise


def _refuse_unwritable(run: RunDir) -> None:
    """Also a directory that an earlier start made as another user."""
    for folder in (run.path, run.control, run.logs, run.attempts, run.checkpoints):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unwritable(run, f"{folder}: not writable by uid {os.getuid()}, groups {os.getgroups()}")


def _unwritable(run: RunDir, cause: str) -> ConfigError:
    return ConfigError(
        f"the run directory {run.path} cannot be written",
        cause=cause,
        mend="--fs-group GID of the volume, or an image whose user may write there; is a --run-volume given?",
    )


def _take_config(given: Path, run: RunDir) -> None:
    """The run's config is what its first start was given."""
    if given == run.config:
        return
    try:
        content = given.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the config {given} cannot be read: {error.strerror}",
            mend="mount the ConfigMap of the job there, as `dist-train launch --dry-run` shows it",
        ) from None
    if not run.config.exists():
        write_bytes_atomic(run.config, content)
    elif run.config.read_bytes() != content:
        raise ConfigError(
            f"{run.config} is not the config that this job was given ({given})",
            cause="another config is another run",
            mend="give the new run another --name",
        )


def _make_key(path: Path) -> None:
    """32 random bytes, made once: a key that is whole stays, one that a killed agent left torn does not."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not _is_whole(path):
            write_bytes_atomic(path, secrets.token_bytes(_KEY_BYTES))
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _is_whole(path: Path) -> bool:
    try:
        return len(path.read_bytes()) >= _KEY_BYTES
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise ConfigError(
            f"the run key {path} cannot be read by uid {os.getuid()}",
            cause="node 0 made it as another user",
            mend="let all pods of the job run as one user",
        ) from error


def _wait_for_key(told: Settings, join_by: float, say: Callable[[str], None]) -> None:
    path = told.run.control / "key"
    began = say_at = time.monotonic()
    while not _is_there(path):
        now = time.monotonic()
        if signal.sigpending() & SIGNALS:
            raise Preempted(f"node {told.node} was stopped before node 0 had made {told.run.path}")
        if now >= join_by:
            raise RendezvousError(
                f"node 0 has not made {path} in {now - began:.0f} s",
                cause="its pod has not started, or the run directory is not on one volume of all pods",
                mend="see the pod of node 0; --run-volume pvc/NAME gives all pods one volume",
            )
        if now >= say_at:
            say(f"node {told.node} waits for node 0 to make {path}, since {now - began:.0f} s")
            say_at = now + bounds.ROLL_CALL_S
        time.sleep(_POLL_S)


def _is_there(path: Path) -> bool:
    try:
        os.listdir(path.parent)  # NFS caches that a file was absent; listing asks anew
    except OSError:
        pass
    return _is_whole(path)
