"""A job that somebody submitted with the scheduler's own command: agent 0 writes what a launcher would."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from dist_train.agent import submissions
from dist_train.agent.settings import Settings
from dist_train.jobs.spec import JobSpec, Target
from dist_train.rundir.events import append_event
from dist_train.rundir.records import read_json, write_json_atomic


def describe(told: Settings, environ: Mapping[str, str] | None = None) -> None:
    """Write job.json and `submitted`, so that every verb finds the run; nothing where a launcher has."""
    environ = os.environ if environ is None else environ
    if told.in_pod:
        _describe_in_pod(told)
        return
    handle = f"{told.launcher}:{environ.get('SLURM_JOB_ID', '')}"
    if told.launcher != "slurm" or handle.endswith(":"):
        return
    record = read_json(told.run.job)
    if record is not None and (not record.get("by_hand") or record.get("handle") == handle):
        return
    append_event(told.run, "submitted", launcher=told.launcher, handle=handle, host=socket.gethostname())
    facts = {"launcher": told.launcher, "handle": handle, "argv": [], "options": {}, "by_hand": True}
    write_json_atomic(told.run.job, {**facts, "spec": _spec(told).to_json()})


def _describe_in_pod(told: Settings) -> None:
    """Whoever launched sees no run directory in a pod: agent 0 writes what it knows, and each submission."""
    submissions.begin(told)
    if read_json(told.run.job) is None:
        facts = {"launcher": told.launcher, "handle": submissions.handle(told), "argv": [], "options": {}}
        write_json_atomic(told.run.job, {**facts, "by_hand": True, "spec": _spec(told).to_json()})


def _spec(told: Settings) -> JobSpec:
    return JobSpec(
        name=told.run.path.name,
        run_id=told.run_id,
        run_dir=told.run.path,
        target=Target(told.kind, told.value, told.args, told.folder),
        nodes=told.nodes,
        procs_per_node=told.procs,
        device="cuda" if told.device == "cuda" else "cpu",
        threads_per_rank=told.threads_per_rank,
        max_restarts=told.max_restarts,
        restart_on=told.restart_on,
        init_method=told.init_method,
        grace_s=told.grace_s,
        show_ranks=told.show_ranks,
        local_rank_flag=told.local_rank_flag,
    )
