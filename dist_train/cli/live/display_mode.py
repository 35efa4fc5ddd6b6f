"""How progress is displayed: live, plain or none, by --progress and by what the terminal can do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from dist_train.errors import UsageError

if TYPE_CHECKING:
    from dist_train.jobs.launcher import Launcher
    from dist_train.jobs.spec import JobSpec

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
    spec: JobSpec,
    environ: Mapping[str, str] = os.environ,
    is_terminal: Sequence[bool] | None = None,
) -> Progress:
    """Resolve `--progress`; raise UsageError for `live` where no panel can be drawn.

    Args:
        asked: one of CHOICES; None is auto.
        launcher: some keep a run's records where this machine does not see them.
        spec: the job's.
        is_terminal: of stdout and of stderr; None checks them.
    """
    elsewhere = launcher.run_dir_on_nodes(spec) is not None
    out, err = is_terminal or (_is_terminal(_STDOUT), _is_terminal(_STDERR))
    dumb = environ.get("TERM", "dumb") in ("dumb", "unknown", "")
    if asked in ("plain", "none"):
        return "none" if asked == "none" else "plain"
    if asked == "live":
        if elsewhere or not err or dumb:
            why = "TERM names no terminal that can" if err else "stderr is not a terminal"
            raise UsageError(
                "--progress live: a panel cannot be drawn here",
                cause=f"the records of a {launcher.name} run are on its nodes" if elsewhere else why,
                hint="--progress plain writes a line every few seconds",
            )
        return "live"
    # auto: no escape codes with NO_COLOR, nor where the output goes into a pipe.
    may = out and err and not dumb and not environ.get("NO_COLOR") and not elsewhere
    return "live" if may and in_front(_STDERR) else "plain"


def in_front(descriptor: int) -> bool:
    """Whether this process may write to the terminal: it is not in the background of its shell."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal: no shell with job control


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
