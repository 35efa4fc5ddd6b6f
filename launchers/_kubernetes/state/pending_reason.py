"""The state of a job that has not ended: what it waits for, and the command that shows more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dist_train.errors import ExitCode
from dist_train.jobs import JobState
from dist_train.jobs.launcher import Phase
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_object import JobObject
from launchers._kubernetes.state.job_snapshot import JobSnapshot
from launchers._kubernetes.state.pod_reasons import end_reason, pod_reason, root_cause_of
from launchers._kubernetes.state.pods import Pod, newest_generation, newest_of_nodes
from launchers._kubernetes.state.queue_hints import queue_hint

_SOURCE = "API server"


def removal_state(job: Job, snapshot: JobSnapshot) -> JobState:
    """The state while the job is deleted and some of its objects still exist."""
    left = ", ".join(pod.name for pod in newest_of_nodes(snapshot.pods).values())
    text, commands = _stuck(job, snapshot)
    still = f"it is being removed; {left} not gone yet" if left else "it is being removed"
    return JobState("running", _SOURCE, _join(still, text), next=commands)


def orphan_state(job: Job, snapshot: JobSnapshot) -> JobState:
    """The state of pods without a job object: for a moment, or by `kubectl delete --cascade=orphan`."""
    left = ", ".join(pod.name for pod in newest_of_nodes(snapshot.pods).values())
    gone = f"its {job.api_kind.kind} was deleted"
    return JobState("running", _SOURCE, f"{gone}, and {left} still there: none will be recreated")


def active_state(job: Job, snapshot: JobSnapshot) -> JobState:
    """The state while the controller creates the pods, or waits to; also of a run that is complete."""
    state = _active_state(job, snapshot)
    if not _is_complete_but_held(newest_of_nodes(snapshot.pods).values()):
        return state
    return replace(state, phase="running", detail=_join("the training is complete", state.detail))


def _is_complete_but_held(pods: Collection[Pod]) -> bool:
    """Whether an agent has left with the run's success, and another pod is not about to do so too.

    Each agent's verdict is that of the run: no pod has anything left to train.
    """
    complete = any(pod.verdict is not None and pod.verdict.code == ExitCode.OK for pod in pods)
    left = [pod for pod in pods if pod.container.exit_code != 0]
    leaving = [
        pod for pod in left if pod.container.running and not pod.deleting and not pod.host_unresponsive
    ]
    return complete and len(leaving) < len(left)


def _active_state(job: Job, snapshot: JobSnapshot) -> JobState:
    job_object, newest = snapshot.job_object, newest_of_nodes(snapshot.pods)
    assert job_object is not None
    begun = bool(job_object.restarts) or any(pod.ended for pod in snapshot.pods)
    phase = _phase(newest, "requeued" if begun else "pending")
    if job_object.stage == "suspended":
        return _suspended(job, snapshot, job_object, phase)
    describe = (job.kubectl(f"describe {job.api_kind.full_name} {job.name}"),)
    if not newest:
        why = snapshot.notes[:2] or (job_object.message,)
        head = "no pod could be made" if snapshot.notes else "its pods are not there yet"
        return JobState(phase, _SOURCE, _join(head, *why), next=describe)
    text, commands = _stuck(job, snapshot)
    if text:
        return JobState(phase, _SOURCE, text, next=commands)
    stuck = any(pod_reason(pod, snapshot.now).stuck for pod in newest.values())
    if job_object.size is not None and len(newest) < job_object.size and not stuck:
        head = f"{len(newest)} of {job_object.size} pods are there"
        return JobState(phase, _SOURCE, _join(head, *snapshot.notes[:1]), next=describe)
    return _state_of_pods(job, snapshot, newest, phase)


def _phase(newest: dict[int, Pod], else_phase: Phase) -> Phase:
    """Running while any agent runs, and while the controller has not noticed that all are done."""
    pods = newest.values()
    if any(pod.container.running and not pod.deleting for pod in pods):
        return "running"
    done = bool(newest) and all(pod.container.exit_code == 0 for pod in pods)
    return "running" if done else else_phase


def _state_of_pods(job: Job, snapshot: JobSnapshot, newest: dict[int, Pod], phase: Phase) -> JobState:
    """The state by the pod that delays the others: one that cannot start, that waits or that is recreated."""
    reasons = {pod.name: pod_reason(pod, snapshot.now) for pod in newest.values()}
    starting = [pod for pod in newest.values() if not pod.started and not pod.deleting and not pod.ended]
    starting.sort(key=lambda pod: not reasons[pod.name].stuck)
    lingering = [pod for pod in newest.values() if pod.other_containers and reasons[pod.name].stuck]
    if held := [*starting, *lingering]:
        found = reasons[held[0].name]
        notes = snapshot.notes[:1] if not found.stuck else ()
        still = "it will not go on by itself" if found.stuck else ""
        command = (job.kubectl(found.command),) if found.command else ()
        after = "" if found.stuck else _previous_end(snapshot, newest)
        return JobState(phase, _SOURCE, _join(_named(held, found.text), *notes, still, after), next=command)
    if leaving := [
        pod for pod in newest.values() if pod.deleting or (pod.ended and pod.container.exit_code != 0)
    ]:
        text = _named(leaving, reasons[leaving[0].name].text)
        ending = snapshot.job_object is not None and snapshot.job_object.ending
        return JobState(
            phase, _SOURCE, _join(text, "none is recreated" if ending else "its pods are recreated")
        )
    if unresponsive := [pod for pod in newest.values() if pod.host_unresponsive]:
        found = reasons[unresponsive[0].name]
        waits = "its pods are recreated once the cluster gives it up"
        return JobState(
            phase, _SOURCE, _join(_named(unresponsive, found.text), waits), next=(job.kubectl(found.command),)
        )
    hosts = ", ".join(dict.fromkeys(pod.host for pod in newest.values() if pod.host))
    return JobState(phase, _SOURCE, f"on {hosts}" if hosts else "")


def _previous_end(snapshot: JobSnapshot, newest: dict[int, Pod]) -> str:
    """Why the pods were recreated: the reason of the start before."""
    before = newest_generation(pod for pod in snapshot.pods if pod is not newest.get(pod.node or 0))
    pod = root_cause_of(before)
    return "" if pod is None else f"recreated after pod {pod.name}: {end_reason(pod).text}"


def _named(pods: list[Pod], text: str) -> str:
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"pod {pods[0].name}{more}: {text}"


def _stuck(job: Job, snapshot: JobSnapshot) -> tuple[str, tuple[str, ...]]:
    """Pods stuck Terminating on machines that do not respond: text, and commands that force their end."""
    found = [
        (pod, reason)
        for pod in snapshot.pods
        if (reason := pod_reason(pod, snapshot.now)).stuck and pod.deleting
    ]
    text = "; ".join(f"pod {pod.name}: {reason.text}" for pod, reason in found)
    # An active job waits until the Node object is deleted; for one that is removed, --force is enough.
    active = snapshot.job_object is not None and not snapshot.job_object.deleting
    commands = [
        command
        for _, reason in found
        for command in ((*reason.also, reason.command) if active else (reason.command, *reason.also))
    ]
    return text, tuple(job.kubectl(command) for command in dict.fromkeys(commands))


def _suspended(job: Job, snapshot: JobSnapshot, job_object: JobObject, phase: Phase) -> JobState:
    if job_object.queue:
        notes = snapshot.notes[:2] or (job_object.message or "the queue has not admitted it yet",)
        show = job.kubectl("get workloads.kueue.x-k8s.io -o wide")
        head, hint = f"suspended in the queue {job_object.queue}", queue_hint(notes)
        return JobState(phase, _SOURCE, _join(head, *notes, hint), next=(show,))
    change = '{"spec":{"suspend":false}}'
    start = job.kubectl(f"patch {job.api_kind.full_name} {job.name} --type merge -p '{change}'")
    return JobState(phase, _SOURCE, "it is suspended, and no queue will start it", next=(start,))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
