"""The state and exit code of a job that has ended: by its agents' verdicts, else by its pods' statuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dist_train.errors import ExitCode
from dist_train.jobs import JobState
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_object import JobObject
from launchers._kubernetes.state.pod_reasons import SECONDARY_CODES, end_reason, exit_code, root_cause_of
from launchers._kubernetes.state.pods import Pod, newest_generation, newest_of_nodes
from launchers._kubernetes.state.verdict import Verdict

_SOURCE = "API server"
_DEADLINE = "its time limit ended it"
# Reasons of a job's end, by its controller; "": the verdict has more information.
_END_TEXTS = {
    "BackoffLimitExceeded": "its restarts are used up",
    "ReachedMaxRestarts": "its restarts are used up",
    "DeadlineExceeded": _DEADLINE,
    "PodFailurePolicy": "",
    "FailedJobs": "",
    "FailJobSetFailurePolicyAction": "",
}
_TERMINATED = 143


def newest_verdict(pods: Iterable[Pod]) -> Verdict | None:
    """The verdict of the newest start: of its last attempt, if possible one of an own failure."""
    verdicts = [pod.verdict for pod in newest_generation(pods) if pod.verdict is not None]
    verdicts.sort(key=lambda one: -1 if one.attempt is None else one.attempt, reverse=True)
    return next(
        (one for one in verdicts if one.code not in SECONDARY_CODES), verdicts[0] if verdicts else None
    )


def final_state(job: Job, job_object: JobObject, pods: Iterable[Pod], verdict: Verdict | None) -> JobState:
    """The state of a job whose controller starts no more pods for it."""
    if job_object.stage == "complete":
        return JobState("done", _SOURCE, "", 0)
    if job_object.stage == "aborted":
        return JobState("stopped", _SOURCE, _join("aborted", job_object.message), int(ExitCode.CANCELLED))
    root_cause = root_cause_of(newest_generation(pods))
    code = _exit_code(job_object, root_cause, verdict)
    parts = [_END_TEXTS.get(job_object.reason, _join(job_object.reason, job_object.message))]
    if code == ExitCode.PREEMPTED:
        parts.append("not started again")
    if verdict is not None and (verdict.code == code or root_cause is None):
        parts.append(verdict.text)
    elif root_cause is not None:
        parts.append(f"pod {root_cause.name} (node {root_cause.node or 0}): {end_reason(root_cause).text}")
    elif not parts[0]:
        parts.append(job_object.message)
    elif parts[0] == _DEADLINE:
        parts.append("its pods and their termination messages are gone: what it saved is on the run volume")
    stopped = code in (ExitCode.PREEMPTED, ExitCode.CANCELLED) or (verdict is not None and verdict.stopped)
    command = () if verdict is not None else (job.kubectl(f"describe {job.api_kind.full_name} {job.name}"),)
    return JobState("stopped" if stopped else "failed", _SOURCE, _join(*parts), code, next=command)


def state_without_job_object(job: Job, pods: Iterable[Pod], verdict: Verdict | None) -> JobState:
    """The state where all pods have ended, and the job object was deleted."""
    job_object = JobObject(job.api_kind.kind, job.name, "", "failed")
    if all(pod.container.exit_code == 0 for pod in newest_of_nodes(pods).values()):
        return JobState("done", _SOURCE, "", 0)
    state = final_state(job, job_object, pods, verdict)
    return replace(state, detail=_join(f"its {job.api_kind.kind} is gone", state.detail), next=())


def state_of_removed_job(verdict: Verdict | None) -> JobState:
    """The state of a job of which no object is left; `verdict`: the one that a watch saw."""
    if verdict is not None and verdict.code == ExitCode.OK:
        return JobState("done", _SOURCE, "", 0)
    if verdict is not None and verdict.code not in SECONDARY_CODES:
        return JobState("stopped" if verdict.stopped else "failed", _SOURCE, verdict.text, verdict.code)
    why = "the cluster has nothing of it any more: deleted by hand, or removed after its end (--ttl)"
    where = "how it ended is recorded on the run volume" if verdict is None else verdict.text
    return JobState("stopped", _SOURCE, _join(why, where))


def _exit_code(job_object: JobObject, root_cause: Pod | None, verdict: Verdict | None) -> int:
    """The agents' verdict; else the exit code of a pod that wrote none; else 69."""
    if job_object.reason == "DeadlineExceeded":
        return verdict.code if verdict is not None and verdict.code != ExitCode.OK else _TERMINATED
    if verdict is not None and verdict.code not in SECONDARY_CODES:
        return verdict.code
    observed = exit_code(root_cause) if root_cause is not None else None
    code = observed or (verdict.code if verdict is not None else 0) or int(ExitCode.UNAVAILABLE)
    return int(ExitCode.UNAVAILABLE) if code == ExitCode.ATTEMPT_LOST else code


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
