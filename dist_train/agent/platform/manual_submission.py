"""job.json of a job that no launcher recorded: submitted by hand, or its run directory is out of sight."""

from __future__ import annotations

from dist_train.agent.settings import Settings
from dist_train.jobs.spec import JobSpec, Target
from dist_train.rundir.records import write_json_atomic


def write_job_record(settings: Settings, handle: str) -> None:
    """Write job.json with `by_hand`, from what this agent knows of the job."""
    facts = {"launcher": settings.launcher, "handle": handle, "argv": [], "options": {}, "by_hand": True}
    write_json_atomic(settings.run.job, {**facts, "spec": _spec(settings).to_json()})


def _spec(settings: Settings) -> JobSpec:
    return JobSpec(
        name=settings.run.path.name,
        run_id=settings.run_id,
        run_dir=settings.run.path,
        target=Target(settings.kind, settings.value, settings.args, settings.folder),
        nodes=settings.nodes,
        procs_per_node=settings.procs,
        device="cuda" if settings.device == "cuda" else "cpu",
        threads_per_rank=settings.threads_per_rank,
        max_restarts=settings.max_restarts,
        restart_on=settings.restart_on,
        init_method=settings.init_method,
        grace_s=settings.grace_s,
        show_ranks=settings.show_ranks,
        local_rank_flag=settings.local_rank_flag,
        log_limit_bytes=settings.log_limit_bytes,
        bind=settings.bind,
        profile=settings.profile,
        profile_ranks=settings.profile_ranks,
    )
