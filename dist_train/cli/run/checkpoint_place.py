"""Where the checkpoints of a run are: its directory, or the URL of its config."""

from __future__ import annotations

from pathlib import Path

from dist_train.rundir import RunDir
from dist_train.rundir.remote_checkpoints import read_remote, url_of

# A folder of checkpoints, or one of them: a path, or a URL as text.
Place = Path | str


def place_of_checkpoints(run: RunDir) -> Place:
    """The directory or URL; asks the config where no rank has written it down yet."""
    remote = read_remote(run)
    if remote is not None:
        return remote.url
    directory = _configured(run)
    return run.checkpoints if directory is None else url_of(directory, run)


def _configured(run: RunDir) -> str | None:
    # Most configs have none, and to load one takes as long as all else that lists checkpoints.
    if not run.config.exists() or "directory:" not in run.config.read_text(encoding="utf-8"):
        return None
    from dist_train.config import load_config

    return load_config(run.config).config.checkpoint.directory
