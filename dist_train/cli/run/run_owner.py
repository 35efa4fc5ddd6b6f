"""Whose run it is: another user's is neither the newest run here nor resumed, as its files name the code."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from dist_train.errors import ConfigError
from dist_train.rundir import RunDir


def is_own(run: RunDir) -> bool:
    """Whether nobody else owns the run, or what in it says which code is run."""
    return _foreign_file(run) is None


def refuse_foreign(run: RunDir) -> None:
    """Raise ConfigError for a run that another user owns."""
    found = _foreign_file(run)
    if found is None:
        return
    owner = owner_of(found)
    raise ConfigError(
        f"{found} belongs to {owner}, not to {_name_of(os.geteuid())}",
        cause="to go on with a run is to run the code that its files name",
        hint=f"as its owner: sudo -u {owner} dist-train resume {run.path}; "
        "or launch the same config as a run of your own",
    )


def owner_of(path: Path) -> str:
    """The name of the file's owner."""
    return _name_of(path.stat().st_uid)


def denied(path: Path) -> ConfigError:
    """The error for a file or folder of a run that may not be read."""
    try:
        owner = owner_of(path)
    except OSError:
        return ConfigError(f"{path} cannot be read or written: permission denied")
    return ConfigError(
        f"{path} cannot be read or written: permission denied",
        cause=f"it belongs to {owner}",
        hint=f"ls -ld {path} shows its permissions",
    )


def _foreign_file(run: RunDir) -> Path | None:
    for path in (run.path, run.job, run.config, run.plan, run.control):
        try:
            if path.stat().st_uid != os.geteuid():
                return path
        except FileNotFoundError:
            continue
    return None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
