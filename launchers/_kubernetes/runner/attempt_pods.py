"""Which pod of a node has run an attempt: by its agent's lines in its log, and by its verdict.

A pod that was killed has no verdict, and one that is gone has nothing: the pods that are left say in their
logs with which attempt their agents have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dist_train.rundir.attempt_lines import read_attempt
from launchers._kubernetes.state.pods import Pod


@dataclass(frozen=True)
class AttemptPod:
    """A pod with its first and its last attempt."""

    pod: Pod
    first: int
    last: int


def attempt_pods(pods: Iterable[Pod], lines_of: Callable[[Pod], Iterable[str]]) -> list[AttemptPod]:
    """The pods of one node that have started, the oldest first, with their attempts.

    Args:
        lines_of: a pod's log; empty where it has none.
    """
    found: list[AttemptPod] = []
    for pod in pods:
        marks = [mark for line in lines_of(pod) if (mark := read_attempt(line)) is not None]
        begins = next((attempt for attempt, begins in marks if begins), None)
        # Without the line: the first attempt of all, or the agent of an earlier version of dist-train.
        first = begins if begins is not None else found[-1].last + 1 if found else 0
        by_verdict = pod.verdict.attempt if pod.verdict is not None else None
        last = max([first, *(attempt for attempt, _ in marks), *([] if by_verdict is None else [by_verdict])])
        found.append(AttemptPod(pod, first, last))
    return found


def pod_of_attempt(pods: Iterable[AttemptPod], attempt: int) -> Pod | None:
    """The pod that has run the attempt: the newest, where one was killed before it had begun."""
    of_attempt = [found.pod for found in pods if found.first <= attempt <= found.last]
    return of_attempt[-1] if of_attempt else None
