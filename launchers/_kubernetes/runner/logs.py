"""The output of a node's pods, one after the other, while they run and after they have crashed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dist_train.errors import NotFoundError
from dist_train.jobs.pace import FIRST_S, LONGEST_S, Backoff
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.refusals import Gone, NoLogYet, Unreachable
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.news import RETRY_FIRST_S, RETRY_LONGEST_S, News
from launchers._kubernetes.state.pods import Pod, newest_first

Pods = Callable[[], list[Pod]]
_AGAIN_S = 1.0


class Position:
    """How far a log was read: the server can only be asked from a whole second on."""

    def __init__(self) -> None:
        self._at = ("", "")
        self._lines = 0
        self._skip = 0
        # Of a server that stamps no line, and so begins anew each time.
        self._bare = 0
        self._skip_bare = 0

    @property
    def since(self) -> str:
        """The second to read from; empty for the beginning."""
        return f"{self._at[0]}Z" if self._at[0] else ""

    def resume(self) -> None:
        """The log is read from `since` again: as many lines of the last moment as were seen come again."""
        self._skip, self._skip_bare = self._lines, self._bare

    def take(self, line: bytes) -> str | None:
        """The text of a line that was not seen yet."""
        stamp, _, text = line.decode(errors="replace").partition(" ")
        at = _moment(stamp)
        if at is None:
            return self._take_bare(line.decode(errors="replace"))
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

    def _take_bare(self, text: str) -> str | None:
        if self._skip_bare:
            self._skip_bare -= 1
            return None
        self._bare += 1
        return text


def _moment(stamp: str) -> tuple[str, str] | None:
    """`2026-11-21T10:00:00.12Z` as (second, fraction), which sort as text."""
    if len(stamp) < 20 or stamp[10] != "T" or not stamp.endswith("Z"):
        return None
    second, _, fraction = stamp[:-1].partition(".")
    return second, fraction


def read_log(cluster: Cluster, job: Job, pods: list[Pod], node: int, attempt: int | None) -> Iterator[str]:
    """What there is of one node: its newest pod that has begun, or the one of that attempt.

    Raises NotFoundError (66) where no pod of it has a log.
    """
    of_node = sorted_of(pods, node)
    begun = [pod for pod in of_node if pod.begun]
    chosen = begun[-1:] if attempt is None else _of_attempt(begun, attempt)
    if not chosen:
        raise _no_log(job, of_node, node, attempt)
    position = Position()
    try:
        with cluster.log(chosen[0].name, chosen[0].container.name, follow=False) as stream:
            for line in stream.lines():
                text = position.take(line)
                if text is not None:
                    yield text
    except (NoLogYet, Gone) as error:
        raise _no_log(job, of_node, node, attempt) from error


def _of_attempt(pods: list[Pod], attempt: int) -> list[Pod]:
    """Attempts are counted by the agents: a pod's verdict says up to which one it lived."""
    for pod in pods:
        last = pod.verdict.attempt if pod.verdict is not None else None
        if (last is not None and attempt <= last) or (last is None and pod is pods[-1]):
            return [pod]
    return []


def _no_log(job: Job, pods: list[Pod], node: int, attempt: int | None) -> NotFoundError:
    known = sorted({pod.verdict.attempt for pod in pods if pod.verdict and pod.verdict.attempt is not None})
    which = "" if attempt is None else f" in attempt {attempt}"
    there = ", ".join(f"{pod.name} ({pod.phase})" for pod in pods) or "none"
    said = f"; of attempts {', '.join(map(str, known))}" if known and attempt is not None else ""
    return NotFoundError(
        f"node {node} has no pod with a log{which}",
        cause=f"its pods: {there}{said}",
        mend=f"{job.kubectl('get pods')}; the whole logs are on the run volume",
    )


def sorted_of(pods: list[Pod], node: int) -> list[Pod]:
    """One node's pods, the oldest first."""
    return newest_first(pod for pod in pods if (pod.node or 0) == node)[::-1]


class NodeLog:
    """Follows one node through all its pods until `over()`; the API server may go away and come back."""

    def __init__(self, cluster: Cluster, pods: Pods, node: int, over: Callable[[], bool], news: News) -> None:
        self._cluster = cluster
        self._pods = pods
        self._node = node
        self._over = over
        self._news = news
        self._read: set[str] = set()

    def lines(self) -> Iterator[str]:
        """From the newest pod that has begun on."""
        idle, away = Backoff(FIRST_S, LONGEST_S), Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        first = True
        while not self._news.stopped:
            happened = self._news.count
            try:
                begun = [pod for pod in sorted_of(self._pods(), self._node) if pod.begun]
                if first and begun:
                    self._read.update(pod.uid for pod in begun[:-1])
                    first = False
                unread = [pod for pod in begun if pod.uid not in self._read]
                if not unread and self._over():
                    return
                away.reset()
            except Unreachable:
                self._news.wait(happened, away.wait_s)
                away.grow()
                continue
            if unread:
                idle.reset()
                yield from self._follow(unread[0])
            elif self._news.wait(happened, idle.wait_s):
                idle.reset()
            else:
                idle.grow()

    def _follow(self, pod: Pod) -> Iterator[str]:
        """One pod's output until its container has ended or it is gone."""
        position, away = Position(), Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        while not self._news.stopped:
            ended = self._has_ended(pod)
            happened = self._news.count
            try:
                with self._cluster.log(pod.name, pod.container.name, True, position.since) as stream:
                    position.resume()
                    for line in stream.lines():
                        text = position.take(line)
                        if text is not None:
                            away.reset()
                            yield text
            except Gone:
                break
            except NoLogYet:
                pass
            except Unreachable:
                self._news.wait(happened, away.wait_s)
                away.grow()
                continue
            # Asked before the log was read: what had ended by then was read to its end.
            if ended:
                break
            self._news.wait(happened, _AGAIN_S)
        self._read.add(pod.uid)

    def _has_ended(self, pod: Pod) -> bool:
        try:
            found = next((other for other in self._pods() if other.uid == pod.uid), None)
        except Unreachable:
            return False
        return found is None or found.ended
