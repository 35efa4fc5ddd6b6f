"""Why a pod is where it is, in words for a person, and whether waiting alone can help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from dist_train.errors import ExitCode
from launchers._kubernetes.state.pods import Pod

# After the end of its grace a pod that is still there has a kubelet that does not answer.
_STUCK_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class Words:
    """A reason; `stuck`: it does not go away by itself. `command`: kubectl's words that show more."""

    text: str
    stuck: bool = False
    command: str = ""
    # Where one does not do.
    also: tuple[str, ...] = ()


# Reasons of a waiting container.
_WAITING = {
    "ContainerCreating": Words("its volumes and containers are being made"),
    "PodInitializing": Words("its init containers are at work"),
    "ErrImagePull": Words("its image {image} cannot be pulled", True),
    "ImagePullBackOff": Words("its image {image} cannot be pulled", True),
    "ErrImageNeverPull": Words("its image {image} is not on the machine, and may not be pulled", True),
    "InvalidImageName": Words("{image} is not the name of an image", True),
    "RegistryUnavailable": Words("the registry of {image} does not answer"),
    "CreateContainerConfigError": Words("its container cannot be set up", True),
    "CreateContainerError": Words("its container cannot be made", True),
    "RunContainerError": Words("its container cannot be started", True),
    "CrashLoopBackOff": Words("its container ends again and again", True),
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
# In the kubelet's words, where a pod has used more of the machine's disk than its limit.
_DISK = "ephemeral local storage usage exceeds"
# Codes of an agent that only left because of something else.
LEFT = (ExitCode.OK, ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
_NEVER_STARTED = ("StartError", "ContainerCannotRun")


def pod_words(pod: Pod, now: datetime) -> Words:
    """Where it is and why."""
    if pod.deadline is not None and not pod.ended and now > pod.deadline + _STUCK_AFTER:
        return _stuck(pod, now)
    if pod.phase == "Failed" or pod.container.exit_code not in (None, 0):
        return ended_words(pod)
    if pod.phase == "Succeeded":
        return Words("done")
    if pod.deleting:
        return Words(_leaving(pod))
    if pod.container.exit_code == 0:
        beside = f", but {', '.join(pod.beside)} beside it still runs" if pod.beside else ""
        return Words(f"its agent is done{beside}", stuck=bool(pod.beside), command=f"describe pod {pod.name}")
    if pod.phase == "Unknown":
        return Words("its machine does not answer", command=f"describe pod {pod.name}")
    if pod.silent:
        return Words(f"its machine {pod.host} does not answer", command=f"get node {pod.host}")
    if pod.container.running:
        return Words("running")
    return _waiting(pod)


def _stuck(pod: Pod, now: datetime) -> Words:
    assert pod.deadline is not None
    late = (now - pod.deadline).total_seconds()
    host = pod.host or "NAME"
    return Words(
        f"stuck Terminating: its grace ended {late:.0f} s ago and its machine "
        f"{pod.host or '(none)'} does not answer; only if the machine is really off (else two pods of one "
        f"node may run at once): `kubectl delete node {host}` (an administrator's right) lets it be "
        "replaced; `delete pod --force` alone makes it forgotten, and its Job waits on until the Node object "
        "is gone",
        stuck=True,
        command=f"delete pod {pod.name} --force --grace-period=0",
        also=(f"delete node {host}",),
    )


def ended_words(pod: Pod) -> Words:
    """Of a pod that ended badly."""
    container = pod.container
    why = _why_failed(pod)
    if container.reason == "OOMKilled":
        limit = f" at its limit of {container.memory}" if container.memory else ""
        why = f"out of memory{limit} (OOMKilled): ask for more with --mem"
    if pod.verdict is not None:
        return Words(
            "; ".join(part for part in (f"exit code {pod.verdict.code}", why, pod.verdict.words) if part)
        )
    if container.reason in _NEVER_STARTED:
        why = f"its command could not be started: {container.message}"
    code = "" if container.exit_code is None else f"exit code {container.exit_code}"
    told = "" if why or container.exit_code is None else _last_line(container.message)
    return Words("; ".join(part for part in (why, code, told) if part) or "failed")


def _last_line(message: str) -> str:
    """The pod template asks for the log's last lines where an agent left no verdict."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return f"no verdict; its last line: {lines[-1][:200]}" if lines else "no verdict, and no last line"


def _why_failed(pod: Pod) -> str:
    if pod.reason:
        known = _FAILED.get(pod.reason, pod.reason)
        more = ": ask for more with --resource ephemeral-storage=SIZE" if _DISK in pod.message else ""
        return f"{known} ({pod.message}){more}" if pod.message else known
    return _why_disrupted(pod)


def _leaving(pod: Pod) -> str:
    if pod.silent:
        return f"is to be ended, and its machine {pod.host} does not answer"
    why = _why_disrupted(pod)
    return f"is being ended{f' ({why})' if why else ''}: it saves and stops"


def _why_disrupted(pod: Pod) -> str:
    disrupted = pod.condition("DisruptionTarget")
    return "" if disrupted is None else _DISRUPTED.get(disrupted[0], disrupted[1] or disrupted[0])


def _waiting(pod: Pod) -> Words:
    describe = f"describe pod {pod.name}"
    if pod.container.waiting:
        known = _WAITING.get(pod.container.waiting, Words(pod.container.waiting))
        text = known.text.format(image=pod.container.image)
        said = f"{text} ({pod.container.message})" if pod.container.message else text
        return Words(said, known.stuck, describe)
    if (found := pod.condition("PodScheduled", "False")) is not None:
        reason, message = found
        if reason == "SchedulingGated":
            return Words(f"held by a scheduling gate (a queue that has not admitted it yet): {message}")
        return Words(f"no machine fits: {message or reason}", command=describe)
    if not pod.host:
        return Words("waits for the scheduler", command=describe)
    return Words("its machine has not begun with it yet", command=describe)


def exit_code(pod: Pod) -> int | None:
    """The code of an ended pod: its agent's verdict, else what the machine saw; None while it runs."""
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


def guilty_of(pods: Iterable[Pod]) -> Pod | None:
    """The pod of one start that ended badly by itself, before those that left because of it."""
    bad = [pod for pod in pods if exit_code(pod) not in (None, 0)]
    return next((pod for pod in bad if exit_code(pod) not in LEFT), next(iter(bad), None))
