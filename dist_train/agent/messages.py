"""What agents say to node 0 and what node 0 answers: one JSON object per line, never a pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Join:
    """A node is ready for the next attempt.

    `machine` is the kernel's host name, `host` what the cluster calls the node; `loopback` the
    loopback address that the machine's own name resolves to there, if it does; `scheduler` what the
    cluster said of the node.
    """

    node: int
    host: str
    pid: int
    procs: int
    nonce: str
    fingerprint: dict[str, str]
    machine: str = ""
    loopback: str = ""
    scheduler: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankExited:
    """A rank ended by itself with 0 (or 75): the others should end soon."""

    node: int
    rank: int
    code: int


@dataclass(frozen=True)
class NodeFailed:
    """A rank of this node failed: told at once, before its siblings are gone."""

    node: int
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class NodeStopped:
    """No rank of this node lives any more; with every failure that this node saw."""

    node: int
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class NodeDone:
    """All ranks of this node ended by themselves with 0 or 75."""

    node: int
    codes: dict[str, int]


@dataclass(frozen=True)
class StopAsked:
    """A node was told to save and stop (TERM, USR2); node 0 passes it on to all."""

    node: int
    reason: str


@dataclass(frozen=True)
class Bye:
    """The node has read the verdict and leaves."""

    node: int


@dataclass(frozen=True)
class Beat:
    """I am alive."""


@dataclass(frozen=True)
class Waiting:
    """Who is here and who is missing."""

    missing: list[int]
    present: dict[str, str]
    waited_s: float


@dataclass(frozen=True)
class Start:
    """Everybody is here: start the ranks of this attempt."""

    attempt: int
    master_addr: str
    master_port: int
    hosts: list[str]


@dataclass(frozen=True)
class StopWorkers:
    """Something failed elsewhere: end your ranks, they are victims."""

    why: str


@dataclass(frozen=True)
class Verdict:
    """How the attempt ended, the same for all nodes."""

    action: Literal["restart", "exit"]
    exit_code: int
    why: str
    failure: dict[str, Any] | None = field(default=None)


Message = (
    Join
    | RankExited
    | NodeFailed
    | NodeStopped
    | NodeDone
    | StopAsked
    | Bye
    | Beat
    | Waiting
    | Start
    | StopWorkers
    | Verdict
)
_TYPES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        Join,
        RankExited,
        NodeFailed,
        NodeStopped,
        NodeDone,
        StopAsked,
        Bye,
        Beat,
        Waiting,
        Start,
        StopWorkers,
        Verdict,
    )
}


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`; raises ValueError for anything else."""
    try:
        record = json.loads(line)
        return _TYPES[record.pop("type")](**record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message of a dist-train agent: {line[:80]!r}") from error
