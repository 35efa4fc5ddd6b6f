"""Choose the root cause among the failures that the nodes' agents reported. Pure functions.

Clocks of two hosts are never compared: the class of a failure decides, then the order in which
node 0 received the reports.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dist_train.agent.failures.classify_failure import has_network_words
from dist_train.rundir.failure import Failure

# The lowest is the root cause. An abort is often NCCL's or glibc's answer to a dead peer, so an exception
# comes before it.
_PRECEDENCE = {
    "signal": 0,
    "out_of_memory": 0,
    "exception": 1,
    "exit": 1,
    "rendezvous": 1,
    "dist_train": 1,
    "early_exit": 3,
    "hang": 4,
    "node_lost": 5,
    "victim": 9,
}
_ABORT_PRECEDENCE = 2
# The program's own error about some connection: perhaps because a peer is gone, if anything else failed too.
_NETWORK_ERROR_PRECEDENCE = 6
_OTHER_PRECEDENCE = 8
# How checkpoint/agreement.py has all ranks raise the error of one.
_OF_ANOTHER_RANK = re.compile(r"(?:\w+: )?on rank (\d+): ")


def choose_root_cause(failures: Sequence[Failure], exited_early: Mapping[int, int] | None = None) -> Failure:
    """Return the root cause, with the other failed ranks as its secondary failures.

    Args:
        failures: in the order in which node 0 received them; not empty.
        exited_early: rank -> node of ranks that had already left with 0 when the first failure came.
    """
    root_cause = min(failures, key=lambda failure: (_precedence(failure), _repeats_another(failure)))
    if root_cause.cls == "victim" and exited_early:
        rank = next(iter(exited_early))
        root_cause = Failure(
            source="rank",
            cls="early_exit",
            rank=rank,
            node_rank=exited_early[rank],
            exit_code=1,
            message=f"rank {rank} left with exit code 0 while other ranks were still at work",
            attempt=root_cause.attempt,
        )
    secondary_failures = sorted(
        {f.rank for f in failures if f.rank is not None and f.rank != root_cause.rank}
    )
    return replace(root_cause, secondary_failures=tuple(secondary_failures))


def _precedence(failure: Failure) -> int:
    if failure.cls == "signal" and failure.signal == signal.SIGABRT:
        return _ABORT_PRECEDENCE
    if _may_be_secondary(failure):
        return _NETWORK_ERROR_PRECEDENCE
    return _PRECEDENCE.get(failure.cls, _OTHER_PRECEDENCE)


def _repeats_another(failure: Failure) -> bool:
    """Whether a rank says the error of another one, which has the traceback and the exit code."""
    found = _OF_ANOTHER_RANK.match(failure.message)
    return found is not None and int(found[1]) != failure.rank


def _may_be_secondary(failure: Failure) -> bool:
    """Whether a rank's own error speaks of a broken connection, in its message or its last line."""
    if failure.source != "rank" or failure.cls not in ("exception", "exit"):
        return False
    return has_network_words(
        failure.message if failure.cls == "exception" else "".join(failure.log_tail[-1:])
    )


def is_crash(failure: Failure) -> bool:
    """Whether a restart can help: death by signal, a lost node, a broken network, a hang.

    A kill for memory is one like any other signal's; an exception that tells of one is an exception.
    """
    if failure.cls == "out_of_memory":
        return failure.signal is not None
    return failure.cls in ("signal", "node_lost", "hang", "victim")
