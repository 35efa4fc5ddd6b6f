"""The output of a node's pods, one after the other, while they run and after they have failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dist_train.errors import NotFoundError
from dist_train.jobs.polling import FIRST_S, LONGEST_S, Backoff
from dist_train.rundir.display_number import display_number
from launchers._kubernetes.api.api_errors import Forbidden, NoLogYet, ObjectNotFound, Unreachable
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.lasting_refusal import LastingRefusal
from launchers._kubernetes.runner.attempt_pods import AttemptPod, attempt_pods, pod_of_attempt
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pod_watch import RETRY_FIRST_S, RETRY_LONGEST_S, PodWatch
from launchers._kubernetes.state.pods import Pod, newest_first

Pods = Callable[[], list[Pod]]
_REOPEN_S = 1.0


class LogPosition:
    """How far a log was read, to resume without repeats: `sinceTime` has whole seconds only."""

    def __init__(self) -> None:
        self._at = ("", "")
        self._lines = 0
        self._skip = 0
        # Of a server that adds no time stamps, and so starts from the beginning each time.
        self._unstamped = 0
        self._skip_unstamped = 0

    @property
    def since(self) -> str:
        """The second from which to read; empty for the beginning."""
        return f"{self._at[0]}Z" if self._at[0] else ""

    def resume(self) -> None:
        """Prepare to read from `since`: lines of the last time stamp that were read already are skipped."""
        self._skip, self._skip_unstamped = self._lines, self._unstamped

    def take(self, line: bytes) -> str | None:
        """Return the text of a line that was not read yet, else None."""
        stamp, _, text = line.decode(errors="replace").partition(" ")
        at = _timestamp(stamp)
        if at is None:
            return self._take_unstamped(line.decode(errors="replace"))
        if at < self._at:
            return None
        if at == self._at:
            if self._skip:
                self._skip -= 1
                return None
            self._lines += 1
        else:
            self._at, self._lines, self._skip = at, 1, 0
        return text

    def _take_unstamped(self, text: str) -> str | None:
        if self._skip_unstamped:
            self._skip_unstamped -= 1
            return None
        self._unstamped += 1
        return text


def _timestamp(stamp: str) -> tuple[str, str] | None:
    """`2026-11-21T10:00:00.12Z` as (second, fraction), which sort as text."""
    if len(stamp) < 20 or stamp[10] != "T" or not stamp.endswith("Z"):
        return None
    second, _, fraction = stamp[:-1].partition(".")
    return second, fraction


def read_log(cluster: Cluster, job: Job, pods: list[Pod], node: int, attempt: int | None) -> Iterator[str]:
    """Read the log of one node: of its newest pod that has started, or of the pod with that attempt.

    Raises NotFoundError (66) where no pod of the node has a log.
    """
    of_node = node_pods(pods, node)
    started = [pod for pod in of_node if pod.started]
    known: list[AttemptPod] = []
    chosen = started[-1] if started else None
    if attempt is not None:
        known = attempt_pods(started, lambda pod: _lines_if_any(cluster, pod))
        chosen = pod_of_attempt(known, attempt)
    if chosen is None:
        raise _no_log(job, of_node, node, attempt, known)
    try:
        yield from log_of_pod(cluster, chosen)
    except (NoLogYet, ObjectNotFound) as error:
        raise _no_log(job, of_node, node, attempt, known) from error


def log_of_pod(cluster: Cluster, pod: Pod) -> Iterator[str]:
    """Yield the lines of one pod so far; raises NoLogYet and ObjectNotFound."""
    position = LogPosition()
    with cluster.log(pod.name, pod.container.name, follow=False) as stream:
        for line in stream.lines():
            text = position.take(line)
            if text is not None:
                yield text


def _lines_if_any(cluster: Cluster, pod: Pod) -> Iterator[str]:
    try:
        yield from log_of_pod(cluster, pod)
    except (NoLogYet, ObjectNotFound):
        return


def _no_log(
    job: Job, pods: list[Pod], node: int, attempt: int | None, known: list[AttemptPod]
) -> NotFoundError:
    which = "" if attempt is None else f" in attempt {display_number(attempt)}"
    existing = ", ".join(f"{pod.name} ({pod.phase})" for pod in pods) or "none"
    numbers = sorted({number for found in known for number in range(found.first, found.last + 1)})
    attempts = (
        f"; of attempts {', '.join(str(display_number(number)) for number in numbers)}" if known else ""
    )
    gone = f"; the pod of attempt {display_number(attempt)} is gone" if _is_gone(attempt, numbers) else ""
    return NotFoundError(
        f"node {node} has no pod with a log{which}",
        cause=f"its pods: {existing}{attempts}{gone}",
        hint=f"{job.kubectl('get pods')}; the whole logs are on the run volume",
    )


def _is_gone(attempt: int | None, known: list[int]) -> bool:
    return attempt is not None and bool(known) and attempt < known[-1]


def node_pods(pods: list[Pod], node: int) -> list[Pod]:
    """One node's pods, the oldest first."""
    return newest_first(pod for pod in pods if (pod.node or 0) == node)[::-1]


class NodeLogFollower:
    """Follow one node through all its pods until `over()`; an unreachable API server is tried again."""

    def __init__(
        self, cluster: Cluster, pods: Pods, node: int, over: Callable[[], bool], pod_watch: PodWatch
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._node = node
        self._over = over
        self._pod_watch = pod_watch
        self._read: set[str] = set()

    def lines(self) -> Iterator[str]:
        """Yield lines from the newest pod that has started on."""
        idle, unreachable = Backoff(FIRST_S, LONGEST_S), Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        first, refusal = True, LastingRefusal()
        while not self._pod_watch.stopped:
            changes = self._pod_watch.count
            try:
                started = [pod for pod in node_pods(self._pods(), self._node) if pod.started]
                if first and started:
                    self._read.update(pod.uid for pod in started[:-1])
                    first = False
                unread = [pod for pod in started if pod.uid not in self._read]
                if not unread and self._over():
                    return
                unreachable.reset()
                refusal.reset()
            except (Unreachable, Forbidden) as error:
                if isinstance(error, Forbidden) and refusal.believed():
                    raise
                self._pod_watch.wait(changes, unreachable.wait_s)
                unreachable.grow()
                continue
            if unread:
                idle.reset()
                yield from self._follow(unread[0])
            elif self._pod_watch.wait(changes, idle.wait_s):
                idle.reset()
            else:
                idle.grow()

    def _follow(self, pod: Pod) -> Iterator[str]:
        """Yield one pod's output until its container has ended or the pod is deleted."""
        position, unreachable = LogPosition(), Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        refusal = LastingRefusal()
        while not self._pod_watch.stopped:
            ended = self._has_ended(pod)
            changes = self._pod_watch.count
            try:
                with self._cluster.log(pod.name, pod.container.name, True, position.since) as stream:
                    position.resume()
                    refusal.reset()
                    for line in stream.lines():
                        text = position.take(line)
                        if text is not None:
                            unreachable.reset()
                            yield text
            except ObjectNotFound:
                break
            except NoLogYet:
                pass
            except (Unreachable, Forbidden) as error:
                if isinstance(error, Forbidden) and refusal.believed():
                    raise
                self._pod_watch.wait(changes, unreachable.wait_s)
                unreachable.grow()
                continue
            # Checked before the log was read, so the log of an ended container is complete.
            if ended:
                break
            self._pod_watch.wait(changes, _REOPEN_S)
        self._read.add(pod.uid)

    def _has_ended(self, pod: Pod) -> bool:
        try:
            found = next((other for other in self._pods() if other.uid == pod.uid), None)
        except (Unreachable, Forbidden):
            return False
        return found is None or found.ended
