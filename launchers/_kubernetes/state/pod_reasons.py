"""Why a pod is in its state, as text for a person, and whether waiting can help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from dist_train.errors import ExitCode
from launchers._kubernetes.state.pods import Pod

# A pod that exists this long after the end of its grace has a kubelet that does not respond.
_STUCK_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class PodReason:
    """A reason; `stuck`: it does not resolve by itself. `command`: kubectl arguments that show more."""

    text: str
    stuck: bool = False
    command: str = ""
    # Further commands, where one is not enough.
    also: tuple[str, ...] = ()


# Reasons of a waiting container.
_WAITING = {
    "ContainerCreating": PodReason("its volumes and containers are being made"),
    "PodInitializing": PodReason("its init containers are running"),
    "ErrImagePull": PodReason("its image {image} cannot be pulled", True),
    "ImagePullBackOff": PodReason("its image {image} cannot be pulled", True),
    "ErrImageNeverPull": PodReason("its image {image} is not on the machine, and may not be pulled", True),
    "InvalidImageName": PodReason("{image} is not the name of an image", True),
    "RegistryUnavailable": PodReason("the registry of {image} does not answer"),
    "CreateContainerConfigError": PodReason("its container cannot be set up", True),
    "CreateContainerError": PodReason("its container cannot be made", True),
    "RunContainerError": PodReason("its container cannot be started", True),
    "CrashLoopBackOff": PodReason("its container ends again and again", True),
}
# Reasons of a pod that has failed as a whole.
_FAILED = {
    "Evicted": "evicted by its machine",
    "NodeLost": "its machine is lost",
    "NodeShutdown": "its machine was shut down",
    "Terminated": "its machine was shut down",
    "Preempting": "preempted by the machine for a critical pod",
    "UnexpectedAdmissionError": "its machine could not give it its devices",
    "DeadlineExceeded": "its deadline has passed",
    "NodeAffinity": "its machine no longer has the labels that it asks for",
}
_DISRUPTED = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its machine was tainted (lost, drained or not ready)",
    "EvictionByEvictionAPI": "evicted (a drain, or an autoscaler)",
    "DeletionByPodGC": "its machine is gone",
    "TerminationByKubelet": "ended by its machine (shutdown or pressure)",
}
# Part of the kubelet's message, where a pod has used more of the machine's disk than its limit.
_DISK = "ephemeral local storage usage exceeds"
# Exit codes of an agent that has not failed itself: done, preempted, ended because of another node.
SECONDARY_CODES = (ExitCode.OK, ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
_AGENT_PREFIX = "[dist-train"
_NEVER_STARTED = ("StartError", "ContainerCannotRun")


def pod_reason(pod: Pod, now: datetime) -> PodReason:
    """The reason of the pod's state."""
    if pod.deadline is not None and not pod.ended and now > pod.deadline + _STUCK_AFTER:
        return _stuck(pod, now)
    if pod.phase == "Failed" or pod.container.exit_code not in (None, 0):
        return end_reason(pod)
    if pod.phase == "Succeeded":
        return PodReason("done")
    if pod.deleting:
        return PodReason(_terminating(pod))
    if pod.container.exit_code == 0:
        others = (
            f", but its container {', '.join(pod.other_containers)} still runs"
            if pod.other_containers
            else ""
        )
        return PodReason(
            f"its agent is done{others}", stuck=bool(pod.other_containers), command=f"describe pod {pod.name}"
        )
    if pod.phase == "Unknown":
        return PodReason("its machine does not answer", command=f"describe pod {pod.name}")
    if pod.host_unresponsive:
        return PodReason(f"its machine {pod.host} does not answer", command=f"get node {pod.host}")
    if pod.container.running:
        return PodReason("running")
    return _waiting(pod)


def _stuck(pod: Pod, now: datetime) -> PodReason:
    assert pod.deadline is not None
    late = (now - pod.deadline).total_seconds()
    host = pod.host or "NAME"
    return PodReason(
        f"stuck Terminating: its grace ended {late:.0f} s ago and its machine "
        f"{pod.host or '(none)'} does not answer; only if the machine is really off (else two pods of one "
        f"node may run at once): `kubectl delete node {host}` (an administrator's right) lets it be "
        "replaced; `delete pod --force` removes only its record, and its Job waits until the Node object "
        "is gone",
        stuck=True,
        command=f"delete pod {pod.name} --force --grace-period=0",
        also=(f"delete node {host}",),
    )


def end_reason(pod: Pod) -> PodReason:
    """The reason of a pod that has failed."""
    container = pod.container
    why = _why_failed(pod)
    if container.reason == "OOMKilled":
        limit = f" at its limit of {container.memory}" if container.memory else ""
        why = f"out of memory{limit} (OOMKilled): ask for more with --mem"
    if pod.verdict is not None:
        return PodReason(
            "; ".join(part for part in (f"exit code {pod.verdict.code}", why, pod.verdict.text) if part)
        )
    if container.reason in _NEVER_STARTED:
        why = f"its command could not be started: {container.message}"
    code = "" if container.exit_code is None else f"exit code {container.exit_code}"
    last = "" if why or container.exit_code is None else _last_line(container.message)
    return PodReason("; ".join(part for part in (why, code, last) if part) or "failed")


def _last_line(message: str) -> str:
    """The ranks' last line: the pod template has FallbackToLogsOnError for an agent that wrote no verdict.

    What an agent prints by itself is about its start, and nothing about its end.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_AGENT_PREFIX)]
    return (
        f"no verdict; its last line: {lines[-1][:200]}" if lines else "no verdict, and no line of the ranks"
    )


def _why_failed(pod: Pod) -> str:
    if pod.reason:
        known = _FAILED.get(pod.reason, pod.reason)
        more = ": ask for more with --resource ephemeral-storage=SIZE" if _DISK in pod.message else ""
        return f"{known} ({pod.message}){more}" if pod.message else known
    return _why_disrupted(pod)


def _terminating(pod: Pod) -> str:
    if pod.host_unresponsive:
        return f"is to be ended, and its machine {pod.host} does not answer"
    why = _why_disrupted(pod)
    return f"is being ended{f' ({why})' if why else ''}: it saves and stops"


def _why_disrupted(pod: Pod) -> str:
    disrupted = pod.condition("DisruptionTarget")
    return "" if disrupted is None else _DISRUPTED.get(disrupted[0], disrupted[1] or disrupted[0])


def _waiting(pod: Pod) -> PodReason:
    describe = f"describe pod {pod.name}"
    if pod.container.waiting:
        known = _WAITING.get(pod.container.waiting, PodReason(pod.container.waiting))
        text = known.text.format(image=pod.container.image)
        message = f" ({pod.container.message})" if pod.container.message else ""
        return PodReason(f"{text}{message}", known.stuck, describe)
    if (found := pod.condition("PodScheduled", "False")) is not None:
        reason, message = found
        if reason == "SchedulingGated":
            return PodReason(f"held by a scheduling gate (a queue that has not admitted it yet): {message}")
        return PodReason(f"no machine fits: {message or reason}", command=describe)
    if not pod.host:
        return PodReason("waits for the scheduler", command=describe)
    return PodReason("its machine has not started it yet", command=describe)


def exit_code(pod: Pod) -> int | None:
    """The exit code of an ended pod: of its agent's verdict, else of its status; None while it runs."""
    container = pod.container
    if pod.verdict is not None:
        return pod.verdict.code
    if container.reason == "OOMKilled":
        return 137
    if container.reason in _NEVER_STARTED:
        return int(ExitCode.CONFIG)
    if pod.reason or pod.condition("DisruptionTarget") is not None:
        return int(ExitCode.UNAVAILABLE)  # something outside ended it
    if container.exit_code is not None:
        return container.exit_code
    return int(ExitCode.UNAVAILABLE) if pod.phase == "Failed" else None


def root_cause_of(pods: Iterable[Pod]) -> Pod | None:
    """The pod of one start that failed by itself, else one that ended because of it."""
    bad = [pod for pod in pods if exit_code(pod) not in (None, 0)]
    return next((pod for pod in bad if exit_code(pod) not in SECONDARY_CODES), next(iter(bad), None))
