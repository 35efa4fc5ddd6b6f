"""The state of a run: queried from its launcher, never guessed."""

from __future__ import annotations

from dist_train.cli.run.find_run import OpenedRun
from dist_train.errors import DistTrainError
from dist_train.jobs.launcher import JobState
from dist_train.rundir.file_age import file_age_s

# From a submission to the first record of an agent; only for launchers that have no queue to query.
_BEGIN_S = 60.0


def query_state(opened: OpenedRun) -> JobState:
    """The launcher's answer; a query that fails is `unknown`, never `failed`."""
    try:
        return opened.launcher.state(opened.handle, opened.run_dir)
    except DistTrainError as error:
        return JobState("unknown", opened.launcher.name, error.what)
    except OSError as error:
        return JobState("unknown", opened.launcher.name, str(error))


def is_active(opened: OpenedRun, state: JobState) -> bool:
    """Whether the run is running, or will run without another command."""
    if state.phase in ("running", "requeued"):
        return True
    return state.phase == "pending" and not never_began(opened, state)


def never_began(opened: OpenedRun, state: JobState) -> bool:
    """Whether its launcher ended early: submitted long ago, in no queue, and no agent wrote a record."""
    if state.phase != "pending" or state.source != "events":
        return False
    age = file_age_s(opened.run.job, opened.run.control)
    return age is not None and age > _BEGIN_S


def is_unknown(state: JobState) -> bool:
    """Whether nobody answered. A directory without lease and events has a known state: nothing began."""
    return state.phase == "unknown" and state.source != "run directory"
