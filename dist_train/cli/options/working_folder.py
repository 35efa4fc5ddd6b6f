"""The folder in which a command runs: it may have been deleted since the shell entered it."""

from __future__ import annotations

import os

from dist_train.errors import ConfigError


def refuse_missing_folder() -> None:
    """Raise ConfigError where the current folder does not exist: relative paths mean nothing there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            f"the current folder does not exist: {os.environ.get('PWD', 'its name is not known')}",
            cause="it was deleted, or replaced, after this shell had entered it",
            hint='`cd` to a folder that exists; `cd "$PWD"` if it was replaced',
        ) from None
