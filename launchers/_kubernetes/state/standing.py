"""Where a job is: the object, its pods and their agents' verdicts, put together in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from dist_train.jobs import JobState
from launchers._kubernetes.state import ending, waiting
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import Pod, newest_first, newest_of_nodes
from launchers._kubernetes.state.reasons import pod_words
from launchers._kubernetes.state.sight import Sight
from launchers._kubernetes.state.verdict import Verdict, read_verdict

SOURCE = "API server"
# As many digits as container tools show of a digest.
_DIGEST = 12


@dataclass(frozen=True)
class Standing:
    """The state, and what the newest agent told where one has ended."""

    state: JobState
    verdict: Verdict | None = None

    def to_text(self) -> str:
        """As JSON: TorchX hands it on as its `structured_error_msg`."""
        verdict = None if self.verdict is None else self.verdict.to_record()
        return json.dumps({"state": asdict(self.state), "verdict": verdict})

    @classmethod
    def from_text(cls, text: str) -> Standing:
        """The inverse of `to_text`."""
        record = json.loads(text)
        state = record["state"]
        lists = {name: tuple(state[name]) for name in ("next", "nodes")}
        told = record["verdict"]
        return cls(JobState(**{**state, **lists}), None if told is None else read_verdict(json.dumps(told)))


def standing(job: Job, sight: Sight, seen: Iterable[Pod] = ()) -> Standing | None:
    """One answer; None where the cluster has nothing of the job (any more).

    Args:
        seen: pods as a watch saw them last: a deleted pod takes its agent's verdict with it.
    """
    if sight.top is None and not sight.pods:
        return None
    known = _known(sight.pods, seen)
    verdict = ending.verdict(known)
    if sight.top is None and _is_left_alone(sight.pods):
        over = all(pod.ended for pod in newest_of_nodes(sight.pods).values())
        state = ending.left_behind(job, known, verdict) if over else waiting.left_alone(job, sight)
    elif sight.top is None or sight.top.deleting:
        state = waiting.removed(job, sight)
    elif sight.top.finished:
        state = ending.ended(job, sight.top, known, verdict)
    else:
        state = waiting.at_work(job, sight)
    return Standing(replace(state, nodes=_lines(sight)), verdict)


def _is_left_alone(pods: Iterable[Pod]) -> bool:
    """Nobody removes them: their job was deleted without them."""
    return not any(pod.deleting for pod in pods)


def _known(pods: Iterable[Pod], seen: Iterable[Pod]) -> list[Pod]:
    """The pods that there are, and those that a watch saw go."""
    living = {pod.uid: pod for pod in pods}
    return [*living.values(), *(pod for pod in seen if pod.uid not in living)]


def _lines(sight: Sight) -> tuple[str, ...]:
    """One line per node: its pod, phase, machine, restarts, and the reason in words."""
    lines = []
    for node, pod in newest_of_nodes(sight.pods).items():
        before = [other for other in newest_first(sight.pods) if (other.node or 0) == node and other != pod]
        earlier = len(before)
        by_top = sight.top.restarts if sight.top is not None else 0
        restarts = max(pod.restarts, pod.container.restarts, earlier, by_top)
        phase = "Terminating" if pod.deleting else pod.phase
        host = f" on {pod.host}" if pod.host else ""
        why = pod_words(pod, sight.now).text
        said = "" if why.lower() in (phase.lower(), "done") else f": {why}"
        if before and before[0].ended:
            said += f"; before it {before[0].name}: {pod_words(before[0], sight.now).text}"
        image = f", image {pod.container.digest[:_DIGEST]}" if pod.container.digest else ""
        lines.append(f"node {node}  {pod.name}  {phase}{host}{image}, restarts {restarts}{said}")
    return (*lines, *_unlike_images(sight.pods))


def _unlike_images(pods: Iterable[Pod]) -> Iterable[str]:
    """A tag that has moved: machines that had the old image keep it, others pull the new one."""
    newest = newest_of_nodes(pods).values()
    if len({pod.container.digest for pod in newest} - {""}) > 1:
        (image, *_) = (pod.container.image for pod in newest)
        yield f"the nodes run different images, all called {image}: launch by digest (--image NAME@sha256:…)"
