"""A pod that the kernel's out-of-memory killer has hit: the limit, and twice of it as the next --mem.

The kernel kills a rank or a loader worker, seldom the agent: the kubelet reports OOMKilled, and the agent
writes a verdict all the same, which knows no more than a signal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from signal import SIGKILL

from dist_train.jobs.memory_kills import without_cause
from dist_train.rundir.failure import Failure
from launchers._kubernetes.manifest.quantities import mebibytes, memory
from launchers._kubernetes.state.pods import Pod
from launchers._kubernetes.state.verdict import Verdict

_REASON = "OOMKilled"


def oom_killed(pods: Iterable[Pod]) -> Pod | None:
    """The first of the pods in which the kernel has killed a process for memory."""
    return next((pod for pod in pods if pod.container.reason == _REASON), None)


def suggested_memory(pod: Pod | None) -> str:
    """Twice the pod's limit, as --mem takes it; empty where no limit is known."""
    if pod is None or not pod.container.memory:
        return ""
    try:
        return memory(2 * mebibytes(pod.container.memory))
    except ValueError:
        return ""


def with_memory_limit(pods: Iterable[Pod], of_attempt: Iterable[Pod], killed: Pod | None) -> list[Pod]:
    """Add the cause to the verdicts of the killed pod's attempt, where they are of a rank on its node."""
    attempt = {pod.uid for pod in of_attempt} if killed is not None else set[str]()
    return [pod if killed is None or pod.uid not in attempt else _explained_pod(pod, killed) for pod in pods]


def _explained_pod(pod: Pod, killed: Pod) -> Pod:
    return replace(pod, container=replace(pod.container, verdict=_named(pod.verdict, killed)))


def _named(verdict: Verdict | None, pod: Pod) -> Verdict | None:
    if verdict is None or verdict.failure is None:
        return verdict
    if verdict.failure.node_rank not in (None, pod.node):
        return verdict
    return replace(verdict, failure=_explained(verdict.failure, pod))


def _explained(failure: Failure, pod: Pod) -> Failure:
    limit, more = pod.container.memory, suggested_memory(pod)
    at = f" of {limit}" if limit else ""
    hint = f"the kernel killed a process of pod {pod.name} at its limit{at} ({_REASON}): more with --mem"
    hint += f" {more}" if more else ""
    if failure.signal != SIGKILL:
        return replace(failure, hint=hint)
    # Without the agent's own words on the cause, which name the limit by its file in the pod.
    message = without_cause(failure.message)
    cause = f"out of memory at the limit{at} of pod {pod.name} ({_REASON})"
    return replace(failure, cls="out_of_memory", message=f"{message}: {cause}", hint=hint)
