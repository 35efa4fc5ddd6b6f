"""The live view, as a context manager around whatever follows a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.cli.live.display_mode import Progress
from dist_train.cli.run.find_run import OpenedRun


@contextmanager
def shown(progress: Progress, opened: OpenedRun) -> Iterator[None]:
    """Display the output written inside as `progress` says; no panel is left on the terminal afterwards."""
    if progress == "plain" or (progress == "none" and sys.stdout is None):
        yield
        return
    from dist_train.cli.live.run_snapshot import RepeatedLines, RunWatcher
    from dist_train.cli.live.screen import Screen

    repeats = RepeatedLines(opened.run)

    def shows(line: str) -> bool:
        return not repeats.has(line)

    if progress == "none":
        with Screen(None, shows, captured=(1,)):
            yield
        return
    from dist_train.cli.live.panel import Panel

    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    panel = Panel(encoding, colour=not os.environ.get("NO_COLOR"))
    with (
        RunWatcher(opened.run, opened.spec) as watcher,
        Screen(lambda columns, rows: panel.lines(watcher.snapshot, columns), shows, _captured()),
    ):
        yield


def _captured() -> tuple[int, ...]:
    """stderr, and stdout if it is the same terminal."""
    try:
        same = os.isatty(1) and os.ttyname(1) == os.ttyname(2)
    except OSError:
        same = False
    return (1, 2) if same else (2,)
