"""Where a run is: asked of its launcher, never guessed."""

from __future__ import annotations

import time

from dist_train.cli.runs import OpenedRun
from dist_train.errors import DistTrainError
from dist_train.jobs.launcher import JobState

# From a submission to the first record of an agent; only for launchers that have no queue to ask.
_BEGIN_S = 60.0


def ask(opened: OpenedRun) -> JobState:
    """The launcher's answer; a query that fails is `unknown`, never `failed`."""
    try:
        return opened.launcher.state(opened.handle, opened.where)
    except DistTrainError as error:
        return JobState("unknown", opened.launcher.name, error.what)
    except OSError as error:
        return JobState("unknown", opened.launcher.name, str(error))


def is_at_work(opened: OpenedRun, state: JobState) -> bool:
    """Whether somebody runs it, or will without being asked again."""
    if state.phase in ("running", "requeued"):
        return True
    return state.phase == "pending" and not never_began(opened, state)


def never_began(opened: OpenedRun, state: JobState) -> bool:
    """Submitted long ago, no queue holds it, and no agent ever wrote anything: its launcher died early."""
    if state.phase != "pending" or state.source != "events":
        return False
    return time.time() - opened.run.job.stat().st_mtime > _BEGIN_S


def is_unknown(state: JobState) -> bool:
    """Nobody answered. A directory with neither lease nor event is known: nothing ever began in it."""
    return state.phase == "unknown" and state.source != "run directory"
