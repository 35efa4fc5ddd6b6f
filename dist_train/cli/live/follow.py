"""The live view around whatever follows a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.cli.live.mode import Progress
from dist_train.cli.runs import OpenedRun


@contextmanager
def shown(progress: Progress, opened: OpenedRun) -> Iterator[None]:
    """What is written inside goes to the terminal as `progress` wants it; nothing is left drawn after it."""
    if progress == "plain" or (progress == "none" and sys.stdout is None):
        yield
        return
    from dist_train.cli.live.screen import Screen
    from dist_train.cli.live.sight import Repeats, Watcher

    repeats = Repeats(opened.run)

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
        Watcher(opened.run, opened.spec) as watcher,
        Screen(lambda columns, rows: panel.lines(watcher.sight, columns), shows, _captured()),
    ):
        yield


def _captured() -> tuple[int, ...]:
    """stdout only where it is the terminal of stderr: elsewhere it goes its own way."""
    try:
        same = os.isatty(1) and os.ttyname(1) == os.ttyname(2)
    except OSError:
        same = False
    return (1, 2) if same else (2,)
