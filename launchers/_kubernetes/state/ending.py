"""How a job has ended: which of its agents' verdicts counts, and the exit code where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dist_train.errors import ExitCode
from dist_train.jobs import JobState
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import Pod, newest_generation, newest_of_nodes
from launchers._kubernetes.state.reasons import LEFT, ended_words, exit_code, guilty_of
from launchers._kubernetes.state.top import Top
from launchers._kubernetes.state.verdict import Verdict

_SOURCE = "API server"
_DEADLINE = "its time limit ended it"
# What a controller gives as the reason of a job's end; "": the verdict says more than it.
_ENDS = {
    "BackoffLimitExceeded": "its restarts are used up",
    "ReachedMaxRestarts": "its restarts are used up",
    "DeadlineExceeded": _DEADLINE,
    "PodFailurePolicy": "",
    "FailedJobs": "",
    "FailJobSetFailurePolicyAction": "",
}
_TERMINATED = 143


def verdict(pods: Iterable[Pod]) -> Verdict | None:
    """Of the newest start: node 0's, since all agents tell the same; another's where that says more."""
    told = [pod.verdict for pod in newest_generation(pods) if pod.verdict is not None]
    told.sort(key=lambda one: -1 if one.attempt is None else one.attempt, reverse=True)
    return next((one for one in told if one.code not in LEFT), told[0] if told else None)


def ended(job: Job, top: Top, pods: Iterable[Pod], told: Verdict | None) -> JobState:
    """The state of a job whose controller does no more for it."""
    if top.stage == "complete":
        return JobState("done", _SOURCE, "", 0)
    if top.stage == "aborted":
        return JobState("stopped", _SOURCE, _join("aborted", top.message), int(ExitCode.CANCELLED))
    guilty = guilty_of(newest_generation(pods))
    code = _code(top, guilty, told)
    words = [_ENDS.get(top.reason, _join(top.reason, top.message))]
    if code == ExitCode.PREEMPTED:
        words.append("saved, and not started again")
    if told is not None and (told.code == code or guilty is None):
        words.append(told.words)
    elif guilty is not None:
        words.append(f"pod {guilty.name} (node {guilty.node or 0}): {ended_words(guilty).text}")
    elif not words[0]:
        words.append(top.message)
    elif words[0] == _DEADLINE:
        words.append("its pods are gone, and with them their last words: what it saved is on the run volume")
    stopped = code in (ExitCode.PREEMPTED, ExitCode.CANCELLED)
    command = () if told is not None else (job.kubectl(f"describe {job.top.full_name} {job.name}"),)
    return JobState("stopped" if stopped else "failed", _SOURCE, _join(*words), code, next=command)


def left_behind(job: Job, pods: Iterable[Pod], told: Verdict | None) -> JobState:
    """Its pods have all ended, and the object that is the job is gone."""
    top = Top(job.top.kind, job.name, "", "failed")
    if all(pod.container.exit_code == 0 for pod in newest_of_nodes(pods).values()):
        return JobState("done", _SOURCE, "", 0)
    state = ended(job, top, pods, told)
    return replace(state, detail=_join(f"its {job.top.kind} is gone", state.detail), next=())


def vanished(told: Verdict | None) -> JobState:
    """Nothing is left of it; `told` is what a watch has seen of its end."""
    if told is not None and told.code == ExitCode.OK:
        return JobState("done", _SOURCE, "", 0)
    if told is not None and told.code not in LEFT:
        return JobState("failed", _SOURCE, told.words, told.code)
    why = "the cluster has nothing of it any more: deleted by hand, or removed after its end (--ttl)"
    where = "how it ended stands on the run volume" if told is None else told.words
    return JobState("stopped", _SOURCE, _join(why, where))


def _code(top: Top, guilty: Pod | None, told: Verdict | None) -> int:
    """The agents' verdict; what the machine saw of a pod that had no time for one; 69 where nobody tells."""
    if top.reason == "DeadlineExceeded":
        return told.code if told is not None and told.code != ExitCode.OK else _TERMINATED
    if told is not None and told.code not in LEFT:
        return told.code
    seen = exit_code(guilty) if guilty is not None else None
    code = seen or (told.code if told is not None else 0) or int(ExitCode.UNAVAILABLE)
    return int(ExitCode.UNAVAILABLE) if code == ExitCode.ATTEMPT_LOST else code


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
