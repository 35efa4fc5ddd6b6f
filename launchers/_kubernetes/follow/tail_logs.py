"""`dist-train logs`: the output of one node's pods or of all nodes, read once or followed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dist_train.errors import NotFoundError
from dist_train.jobs import JobSpec
from launchers._kubernetes.follow.log_tails import LogTails
from launchers._kubernetes.manifest.pod_paths import POD_RUN_ROOT
from launchers._kubernetes.runner.torchx_session import TorchxSession
from launchers._kubernetes.stderr_messages import print_notice

_WAIT_S = 0.5
# The prefix of an agent for the lines of ranks: `[rank 3 host] `, `[ranks 0-2,5 host] `.
_RANKS_PREFIX = re.compile(r"\[ranks? (\d[\d,-]*) [^\]]*\] ")


def read_logs(
    session: TorchxSession, spec: JobSpec | None, rank: int | None, attempt: int | None
) -> Iterator[str]:
    """Read the logs once; raises NotFoundError where none of the pods has one."""
    missing: NotFoundError | None = None
    found = False
    for node, prefix in _nodes(spec, rank).items():
        try:
            for line in session.log_lines(node, follow=False, attempt=attempt):
                found = True
                if _may_be_of(line, rank):
                    yield prefix + line
        except NotFoundError as error:
            missing = missing or error
    if missing is not None and not found:
        raise missing
    _print_log_path(spec, rank)


def follow_logs(session: TorchxSession, spec: JobSpec | None, rank: int | None) -> Iterator[str]:
    """Follow the logs until the job has ended, through all pods of each node."""
    session.watch()
    _print_log_path(spec, rank)
    tails = LogTails(
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
                if _may_be_of(line, rank):
                    yield line
    finally:
        session.close()
        tails.stop()
    if tails.error is not None and not found:
        raise tails.error


def _nodes(spec: JobSpec | None, rank: int | None) -> dict[int, str]:
    """Node -> the prefix of its lines."""
    if rank is not None:
        return {rank // (spec.procs_per_node if spec is not None else 1): ""}
    nodes = spec.nodes if spec is not None else 1
    return {node: f"[node {node}] " if nodes > 1 else "" for node in range(nodes)}


def _may_be_of(line: str, rank: int | None) -> bool:
    """Whether a line may be of that rank: it has no prefix of other ranks."""
    match = _RANKS_PREFIX.match(line) if rank is not None else None
    if match is None:
        return True
    spans = (span.partition("-") for span in match[1].split(",") if span)
    return any(int(low) <= rank <= int(high or low) for low, _, high in spans)  # type: ignore[operator]


def _print_log_path(spec: JobSpec | None, rank: int | None) -> None:
    if rank is not None and spec is not None:
        print_notice(
            f"a pod's log has what its agent prints; the whole log of rank {rank} is "
            f"{POD_RUN_ROOT}/{spec.name}/logs/attempt-*/rank-{rank}.log on the run volume"
        )
