"""Slurm's states and reasons, explained, with the command that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dist_train.jobs.launcher import Phase

PHASES: dict[str, Phase] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "RESV_DEL_HOLD": "pending",
    "REQUEUED": "requeued",
    "REQUEUE_FED": "requeued",
    "REQUEUE_HOLD": "requeued",
    "SPECIAL_EXIT": "requeued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "POWER_UP_NODE": "pending",
    "COMPLETED": "done",
    "CANCELLED": "stopped",
    "PREEMPTED": "stopped",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "DEADLINE": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "BOOT_FAIL": "failed",
}
_STATE_TEXTS = {
    "TIMEOUT": "its time limit ended it",
    "DEADLINE": "it could not end before its deadline",
    "NODE_FAIL": "a node failed and the job was not requeued",
    "OUT_OF_MEMORY": "out of memory at the limit of a node: ask for more with --mem",
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted by another job",
    "COMPLETING": "its processes are being ended",
    "SUSPENDED": "suspended: it holds its nodes and does nothing",
}


@dataclass(frozen=True)
class Reason:
    """An explained reason; `command` has `{job}` for the id; `stuck`: waiting alone does not help."""

    text: str
    command: str | None = None
    stuck: bool = False


_REASONS: tuple[tuple[str, Reason], ...] = (
    ("None", Reason("being scheduled")),
    ("Priority", Reason("jobs of higher priority wait before it", "squeue --start -j {job}")),
    ("Resources", Reason("waits for nodes to become free", "squeue --start -j {job}")),
    ("BeginTime", Reason("its earliest start is not reached yet (after a requeue: up to two minutes)")),
    ("Cleaning", Reason("its last start is still being cleaned up")),
    ("Dependency(NeverSatisfied)?", Reason("waits for another job", "scontrol show job {job}")),
    ("JobHeldUser", Reason("held by its owner", "scontrol release {job}", stuck=True)),
    (
        "JobHeldAdmin",
        Reason("held by an administrator: ask the site's support", "scontrol show job {job}", True),
    ),
    (
        "JobHoldMaxRequeue",
        Reason("held: requeued as often as the site allows", "scontrol release {job}", True),
    ),
    (
        ".* requeued held",
        Reason(
            "a node could not start it (prolog or job environment), and Slurm holds it",
            "scontrol release {job}",
            True,
        ),
    ),
    (
        "PartitionNodeLimit",
        Reason("asks for more nodes than the partition has", "scontrol show partition", True),
    ),
    (
        "PartitionTimeLimit",
        Reason("asks for more time than the partition allows", "scontrol show partition", True),
    ),
    ("PartitionDown|PartitionInactive", Reason("the partition is closed", "sinfo", True)),
    ("BadConstraints", Reason("no node can ever fulfil what it asks for", "scontrol show job {job}", True)),
    ("ReqNodeNotAvail.*", Reason("nodes that it asks for are down, drained or reserved", "sinfo -R")),
    ("NodeDown", Reason("nodes that it needs are down", "sinfo -R")),
    ("Reservation", Reason("waits for its reservation", "scontrol show reservation")),
    ("Licenses", Reason("waits for licenses", "scontrol show licenses")),
    (
        "Assoc.*|Account.*|Invalid(Account|QOS)",
        Reason("a limit of the account", "sacctmgr show assoc user=$USER", stuck=True),
    ),
    (
        "QOS.*|MaxCpu.*|MaxJobs.*|MaxGRES.*",
        Reason("a limit of the quality of service", "sacctmgr show qos", True),
    ),
    ("JobArrayTaskLimit|.*Limit", Reason("a limit of the site")),
)


def explain_reason(reason: str) -> Reason:
    """Explain a pending job's Reason; an unknown one is returned as Slurm reports it."""
    bare = reason.strip("()")
    for pattern, explained in _REASONS:
        if re.fullmatch(pattern, bare, re.IGNORECASE):
            return Reason(
                f"{explained.text} ({bare})" if bare != "None" else explained.text,
                explained.command,
                explained.stuck,
            )
    return Reason(bare)


def explain_state(state: str) -> str:
    """Explain a state of Slurm."""
    return _STATE_TEXTS.get(state, state.lower().replace("_", " "))
