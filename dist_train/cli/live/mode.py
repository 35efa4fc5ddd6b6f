"""Live, plain or none: what a terminal allows and a person wants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from dist_train.errors import UsageError
from dist_train.jobs.launcher import Launcher

Progress = Literal["live", "plain", "none"]
CHOICES = ("auto", "live", "plain", "none")
HELP = (
    "Progress: live (a panel below the output), plain (a line every few seconds), none.  "
    "[default: auto: live on a terminal]"
)
_STDOUT, _STDERR = 1, 2


def choose(
    asked: str | None,
    launcher: Launcher,
    environ: Mapping[str, str] = os.environ,
    is_terminal: Sequence[bool] | None = None,
) -> Progress:
    """What `--progress` comes to here; raises UsageError for `live` where no panel can be drawn.

    Args:
        asked: one of CHOICES; None is auto.
        launcher: the job's; some keep a run's records where they cannot be seen from here.
        is_terminal: whether stdout and stderr are; None looks.
    """
    elsewhere = hasattr(launcher, "run_dir_on_nodes")
    out, err = is_terminal or (_is_terminal(_STDOUT), _is_terminal(_STDERR))
    dumb = environ.get("TERM", "dumb") in ("dumb", "unknown", "")
    if asked in ("plain", "none"):
        return "none" if asked == "none" else "plain"
    if asked == "live":
        if elsewhere or not err or dumb:
            why = "TERM names no terminal that can" if err else "stderr is not a terminal"
            raise UsageError(
                "--progress live: a panel cannot be drawn here",
                cause=f"the records of a {launcher.name} run lie with its nodes" if elsewhere else why,
                mend="--progress plain writes a line every few seconds",
            )
        return "live"
    # Nobody asked: no escape code for whoever wants none, nor beside the output of a pipe.
    may = out and err and not dumb and not environ.get("NO_COLOR") and not elsewhere
    return "live" if may and in_front(_STDERR) else "plain"


def in_front(descriptor: int) -> bool:
    """Whether this process may draw there: it is not in its shell's background."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal: no shell that could put us behind


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
