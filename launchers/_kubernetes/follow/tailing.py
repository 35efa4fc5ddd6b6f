"""`dist-train logs`: one node's pods, or all nodes', read once or followed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dist_train.errors import NotFoundError
from dist_train.jobs import JobSpec
from launchers._kubernetes.follow.tails import Tails
from launchers._kubernetes.manifest.places import POD_RUN_ROOT
from launchers._kubernetes.runner.session import Session
from launchers._kubernetes.terminal import say

_WAIT_S = 0.5
# How an agent marks what a rank wrote: `[rank 3 host] `, `[ranks 0-2,5 host] `.
_OF_RANKS = re.compile(r"\[ranks? (\d[\d,-]*) [^\]]*\] ")


def read_all(session: Session, spec: JobSpec | None, rank: int | None, attempt: int | None) -> Iterator[str]:
    """What there is; raises NotFoundError where no pod that was asked for has a log."""
    missing: NotFoundError | None = None
    found = False
    for node, prefix in _nodes(spec, rank).items():
        try:
            for line in session.log_lines(node, follow=False, attempt=attempt):
                found = True
                if _belongs(line, rank):
                    yield prefix + line
        except NotFoundError as error:
            missing = missing or error
    if missing is not None and not found:
        raise missing
    _say_where(spec, rank)


def follow_all(session: Session, spec: JobSpec | None, rank: int | None) -> Iterator[str]:
    """Until the job has ended, also through pods that take the place of others."""
    session.watch()
    _say_where(spec, rank)
    tails = Tails(
        {
            prefix: (lambda node=node: session.log_lines(node, follow=True))  # type: ignore[misc]
            for node, prefix in _nodes(spec, rank).items()
        }
    )
    found = False
    try:
        while not tails.over:
            line = tails.take(_WAIT_S)
            if line is not None:
                found = True
                if _belongs(line, rank):
                    yield line
    finally:
        session.close()
        tails.stop()
    if tails.error is not None and not found:
        raise tails.error


def _nodes(spec: JobSpec | None, rank: int | None) -> dict[int, str]:
    """Node -> what stands before its lines."""
    if rank is not None:
        return {rank // (spec.procs_per_node if spec is not None else 1): ""}
    nodes = spec.nodes if spec is not None else 1
    return {node: f"[node {node}] " if nodes > 1 else "" for node in range(nodes)}


def _belongs(line: str, rank: int | None) -> bool:
    """Whether a line may be of that rank: one that is marked as other ranks' is not."""
    match = _OF_RANKS.match(line) if rank is not None else None
    if match is None:
        return True
    spans = (span.partition("-") for span in match[1].split(",") if span)
    return any(int(low) <= rank <= int(high or low) for low, _, high in spans)  # type: ignore[operator]


def _say_where(spec: JobSpec | None, rank: int | None) -> None:
    if rank is not None and spec is not None:
        say(
            f"a pod's log holds what its agent shows; all of rank {rank} is "
            f"{POD_RUN_ROOT}/{spec.name}/logs/attempt-*/rank-{rank}.log on the run volume"
        )
