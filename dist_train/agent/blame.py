"""Who is guilty: pure rules over what the nodes' agents saw.

Clocks of two hosts are never compared: the class of a failure decides, then the order in which
node 0 heard of them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dist_train.rundir.failure import Failure

# What ranks die of when another one is gone. Texts of torch 2.11 to 2.13, gloo and NCCL.
_PEER_SYMPTOMS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    "socket timeout",
    "remote process exited",
    "peer closed",
    "nccl communicator was aborted",
    "nccl watchdog",
    "ncclremoteerror",
    "store is not available",
    "failed to recv",
    "failed to send",
    "rank 0 failed to pass monitoredbarrier",
    "failed to pass monitoredbarrier",
    "wait timeout",
)
_PEER_EXCEPTIONS = ("DistNetworkError", "DistStoreError", "DistBackendError")

# Lower is guiltier. An abort is often NCCL's or glibc's answer to a dead peer, so an exception wins over it.
_ORDER = {"signal": 0, "exception": 1, "exit": 1, "rendezvous": 1, "dist_train": 1}
_ABORT = 2
_LATER = {"early_exit": 3, "hang": 4, "node_lost": 5, "victim": 9}


def is_peer_symptom(exception: str | None, message: str) -> bool:
    """Whether this exception only says that somebody else is gone."""
    if exception is not None and exception.rpartition(".")[2] in _PEER_EXCEPTIONS:
        return True
    lowered = message.lower()
    return any(symptom in lowered for symptom in _PEER_SYMPTOMS)


def choose(failures: Sequence[Failure], exited_early: Mapping[int, int] | None = None) -> Failure:
    """The guilty failure, with the other ranks' numbers as its victims.

    Args:
        failures: in the order in which node 0 heard of them; not empty.
        exited_early: rank -> node of ranks that had already left with 0 when the first failure came.
    """
    guilty = min(failures, key=_guilt)
    if guilty.cls == "victim" and exited_early:
        rank = next(iter(exited_early))
        guilty = Failure(
            source="rank",
            cls="early_exit",
            rank=rank,
            node_rank=exited_early[rank],
            exit_code=1,
            message=f"rank {rank} left with exit code 0 while other ranks were still at work",
            attempt=guilty.attempt,
        )
    victims = sorted({f.rank for f in failures if f.rank is not None and f.rank != guilty.rank})
    return replace(guilty, victims=tuple(victims))


def _guilt(failure: Failure) -> int:
    if failure.cls == "signal" and failure.signal == signal.SIGABRT:
        return _ABORT
    return _ORDER.get(failure.cls, _LATER.get(failure.cls, 8))


def is_crash(failure: Failure) -> bool:
    """Death by signal, a lost node, a broken network, a hang: what a restart can mend."""
    return failure.cls in ("signal", "node_lost", "hang", "victim")
