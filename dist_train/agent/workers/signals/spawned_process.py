"""The first code of a process that multiprocessing spawns for a rank where the scheduler signals all."""

from __future__ import annotations

from dist_train.agent.workers.signals.child_signals import obey_only, protect_spawned_processes
from dist_train.agent.workers.signals.rank_signals import prepare_forks


def protect(parent: int, session: int) -> None:
    """Let it obey only its parent, and prepare what it starts itself."""
    prepare_forks(protect_all=True)
    protect_spawned_processes()
    obey_only(parent, or_its_session=True, session=session)
