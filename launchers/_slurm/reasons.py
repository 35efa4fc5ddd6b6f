"""Slurm's states and reasons, in words for a person, with the command that helps."""

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
_STATE_WORDS = {
    "TIMEOUT": "its time limit ended it",
    "DEADLINE": "it could not end before its deadline",
    "NODE_FAIL": "a node failed and the job was not requeued",
    "OUT_OF_MEMORY": "a node's memory limit ended it: ask for more with --mem",
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted by another job",
    "COMPLETING": "its processes are being ended",
    "SUSPENDED": "suspended: it holds its nodes and does nothing",
}


@dataclass(frozen=True)
class Words:
    """A reason in words; `command` has `{job}` for the id; `stuck` means that waiting alone does not help."""

    text: str
    command: str | None = None
    stuck: bool = False


_REASONS: tuple[tuple[str, Words], ...] = (
    ("None", Words("being scheduled")),
    ("Priority", Words("jobs of higher priority wait before it", "squeue --start -j {job}")),
    ("Resources", Words("waits for nodes to become free", "squeue --start -j {job}")),
    ("BeginTime", Words("its earliest start is not reached yet (after a requeue: up to two minutes)")),
    ("Cleaning", Words("its last start is still being cleaned up")),
    ("Dependency(NeverSatisfied)?", Words("waits for another job", "scontrol show job {job}")),
    ("JobHeldUser", Words("held by its owner", "scontrol release {job}", stuck=True)),
    (
        "JobHeldAdmin",
        Words("held by an administrator: ask the site's support", "scontrol show job {job}", True),
    ),
    (
        "JobHoldMaxRequeue",
        Words("held: requeued as often as the site allows", "scontrol release {job}", True),
    ),
    (
        ".* requeued held",
        Words(
            "a node could not start it (prolog or job environment), and Slurm holds it",
            "scontrol release {job}",
            True,
        ),
    ),
    (
        "PartitionNodeLimit",
        Words("asks for more nodes than the partition has", "scontrol show partition", True),
    ),
    (
        "PartitionTimeLimit",
        Words("asks for more time than the partition allows", "scontrol show partition", True),
    ),
    ("PartitionDown|PartitionInactive", Words("the partition is closed", "sinfo", True)),
    ("BadConstraints", Words("no node can ever fulfil what it asks for", "scontrol show job {job}", True)),
    ("ReqNodeNotAvail.*", Words("nodes that it asks for are down, drained or reserved", "sinfo -R")),
    ("NodeDown", Words("nodes that it needs are down", "sinfo -R")),
    ("Reservation", Words("waits for its reservation", "scontrol show reservation")),
    ("Licenses", Words("waits for licenses", "scontrol show licenses")),
    (
        "Assoc.*|Account.*|Invalid(Account|QOS)",
        Words("a limit of the account", "sacctmgr show assoc user=$USER", stuck=True),
    ),
    (
        "QOS.*|MaxCpu.*|MaxJobs.*|MaxGRES.*",
        Words("a limit of the quality of service", "sacctmgr show qos", True),
    ),
    ("JobArrayTaskLimit|.*Limit", Words("a limit of the site")),
)


def reason_words(reason: str) -> Words:
    """Words for a pending job's Reason; Slurm's own, where we know none better."""
    bare = reason.strip("()")
    for pattern, words in _REASONS:
        if re.fullmatch(pattern, bare, re.IGNORECASE):
            return Words(
                f"{words.text} ({bare})" if bare != "None" else words.text, words.command, words.stuck
            )
    return Words(bare)


def state_words(state: str) -> str:
    """Words for a state that does not speak for itself."""
    return _STATE_WORDS.get(state, state.lower().replace("_", " "))
