"""What every launcher is: the job's record, the plan, the handle, the state."""

from __future__ import annotations

from dist_train.jobs.launcher import JobHandle, JobState, Launcher, Plan
from dist_train.jobs.spec import JobSpec, Target

__all__ = ["JobHandle", "JobSpec", "JobState", "Launcher", "Plan", "Target"]
