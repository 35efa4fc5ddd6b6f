"""The status of a job, from its object, its pods and their agents' verdicts; one line per node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from dist_train.jobs import JobState
from launchers._kubernetes.state import job_result, pending_reason
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_snapshot import JobSnapshot
from launchers._kubernetes.state.out_of_memory import oom_killed, suggested_memory, with_memory_limit
from launchers._kubernetes.state.pod_reasons import pod_reason
from launchers._kubernetes.state.pods import Pod, newest_first, newest_generation, newest_of_nodes
from launchers._kubernetes.state.reason_kind import reason_kind, reason_kinds
from launchers._kubernetes.state.verdict import Verdict, read_verdict

SOURCE = "API server"
# As many digits as container tools show of a digest.
_DIGEST = 12


@dataclass(frozen=True)
class JobStatus:
    """The state, and the verdict where an agent has ended."""

    state: JobState
    verdict: Verdict | None = None
    # Where a pod of a failed job was out of memory: the next --mem.
    more_memory: str = ""

    @property
    def kind(self) -> JobStatus:
        """This status without what changes while its reason stays, to compare it with another."""
        state, detail = self.state, reason_kind(self.state.detail)
        kinds = (reason_kinds(state.next), reason_kinds(state.nodes))
        return replace(self, state=replace(state, detail=detail, next=kinds[0], nodes=kinds[1]))

    def to_text(self) -> str:
        """Serialise to JSON: TorchX passes it on as its `structured_error_msg`."""
        verdict = None if self.verdict is None else self.verdict.to_record()
        record = {"state": asdict(self.state), "verdict": verdict, "more_memory": self.more_memory}
        return json.dumps(record)

    @classmethod
    def from_text(cls, text: str) -> JobStatus:
        """The inverse of `to_text`."""
        record = json.loads(text)
        state = record["state"]
        lists = {name: tuple(state[name]) for name in ("next", "nodes")}
        verdict = None if record["verdict"] is None else read_verdict(json.dumps(record["verdict"]))
        return cls(JobState(**{**state, **lists}), verdict, record["more_memory"])


def status_of(
    job: Job, snapshot: JobSnapshot, seen: Iterable[Pod] = (), rank_restarts: int = 0
) -> JobStatus | None:
    """Derive the status; None where the cluster has nothing of the job (any more).

    Args:
        seen: pods as a watch saw them last: the API no longer has the verdict of a deleted pod.
        rank_restarts: how often the ranks were started again, by the log of a pod of the newest start.
    """
    if snapshot.job_object is None and not snapshot.pods:
        return None
    known = _known(snapshot.pods, seen)
    newest = newest_generation(known)
    out_of_memory = oom_killed(newest)
    known = with_memory_limit(known, newest, out_of_memory)
    snapshot = replace(snapshot, pods=tuple(with_memory_limit(snapshot.pods, newest, out_of_memory)))
    verdict = job_result.newest_verdict(known)
    if snapshot.job_object is None and _are_orphans(snapshot.pods):
        over = all(pod.ended for pod in newest_of_nodes(snapshot.pods).values())
        state = (
            job_result.state_without_job_object(job, known, verdict)
            if over
            else pending_reason.orphan_state(job, snapshot)
        )
    elif snapshot.job_object is None or snapshot.job_object.deleting:
        state = pending_reason.removal_state(job, snapshot)
    elif snapshot.job_object.finished:
        state = job_result.final_state(job, snapshot.job_object, known, verdict)
    else:
        state = pending_reason.active_state(job, snapshot)
    more = suggested_memory(out_of_memory) if state.phase == "failed" else ""
    return JobStatus(replace(state, nodes=_node_lines(snapshot, rank_restarts)), verdict, more)


def _are_orphans(pods: Iterable[Pod]) -> bool:
    """Whether the pods stay: their job was deleted without them."""
    return not any(pod.deleting for pod in pods)


def _known(pods: Iterable[Pod], seen: Iterable[Pod]) -> list[Pod]:
    """The pods that exist, and those that a watch saw before they were deleted."""
    existing = {pod.uid: pod for pod in pods}
    return [*existing.values(), *(pod for pod in seen if pod.uid not in existing)]


def _node_lines(snapshot: JobSnapshot, rank_restarts: int) -> tuple[str, ...]:
    """One line per node: its pod, phase, machine, restarts and reason."""
    lines = []
    gang = {pod.uid for pod in newest_generation(snapshot.pods)}
    newest = newest_of_nodes(snapshot.pods)
    before = {node: _before(snapshot.pods, pod) for node, pod in newest.items()}
    # All nodes start together: one whose pods were deleted (drained) has as many restarts as the others.
    of_gang = max([rank_restarts, *(len(before[node]) for node, pod in newest.items() if pod.uid in gang)])
    for node, pod in newest.items():
        by_job = snapshot.job_object.restarts if snapshot.job_object is not None else 0
        earlier = max(len(before[node]), of_gang if pod.uid in gang else 0)
        restarts = max(pod.restarts, pod.container.restarts, earlier, by_job)
        phase = "Terminating" if pod.deleting else pod.phase
        host = f" on {pod.host}" if pod.host else ""
        why = pod_reason(pod, snapshot.now).text
        reason = "" if why.lower() in (phase.lower(), "done") else f": {why}"
        if before[node] and before[node][0].ended:
            reason += f"; before it {before[node][0].name}: {pod_reason(before[node][0], snapshot.now).text}"
        image = f", image {pod.container.digest[:_DIGEST]}" if pod.container.digest else ""
        lines.append(f"node {node}  {pod.name}  {phase}{host}{image}, restarts {restarts}{reason}")
    return (*lines, *_different_images(snapshot.pods))


def _before(pods: Iterable[Pod], newest: Pod) -> list[Pod]:
    """The other pods of the same node, the newest first."""
    return [pod for pod in newest_first(pods) if (pod.node or 0) == (newest.node or 0) and pod != newest]


def _different_images(pods: Iterable[Pod]) -> Iterable[str]:
    """A tag that was moved: machines that have the old image keep it, others pull the new one."""
    newest = newest_of_nodes(pods).values()
    if len({pod.container.digest for pod in newest} - {""}) > 1:
        (image, *_) = (pod.container.image for pod in newest)
        yield f"the nodes run different images, all called {image}: launch by digest (--image NAME@sha256:…)"
