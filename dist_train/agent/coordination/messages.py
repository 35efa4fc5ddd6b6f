"""Messages between agents and node 0: one JSON object per line, never a pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

LONGEST_MESSAGE = 32 << 20  # bytes; a failure report is cut to far less


@dataclass(frozen=True)
class Join:
    """A node is ready for the next attempt.

    Attributes:
        host: what the cluster calls the node.
        machine: the kernel's host name.
        loopback: the loopback address that the machine's own name resolves to there, if it does.
        scheduler: the scheduler's variables about the node.
        cpus: CPUs of its ranks (`0-3/4-7`); empty where they are not bound.
        cannot_start: why its ranks cannot start as asked.
        reached: the address at which the node has reached node 0.
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
    cpus: str = ""
    cannot_start: str = ""
    reached: str = ""


@dataclass(frozen=True)
class RankExited:
    """A rank ended by itself with 0 (or 75): the others should end soon.

    Attributes:
        attempt: to which the report belongs; here as in the next three. Node 0 ignores that of another.
    """

    node: int
    rank: int
    code: int
    attempt: int


@dataclass(frozen=True)
class NodeFailed:
    """A rank of this node failed: sent at once, before its siblings have ended."""

    node: int
    failures: list[dict[str, Any]]
    attempt: int


@dataclass(frozen=True)
class NodeStopped:
    """All ranks of this node have ended after a failure; with every failure that this node saw."""

    node: int
    failures: list[dict[str, Any]]
    attempt: int


@dataclass(frozen=True)
class NodeDone:
    """All ranks of this node ended by themselves with 0 or 75."""

    node: int
    codes: dict[str, int]
    attempt: int


@dataclass(frozen=True)
class StopAsked:
    """A node was asked to save and stop (TERM, USR2); node 0 passes it on to all."""

    node: int
    reason: str


@dataclass(frozen=True)
class StacksAsked:
    """`dist-train stacks` asks for the Python stacks of these ranks (empty: of all)."""

    request: str
    ranks: list[int]


@dataclass(frozen=True)
class Bye:
    """The node has read the verdict and leaves."""

    node: int


@dataclass(frozen=True)
class Heartbeat:
    """Sent every HEARTBEAT_S by both sides, for a dead host or a cut cable."""


@dataclass(frozen=True)
class Waiting:
    """Which nodes are missing and which are here: names of some, a count of many (see membership_line)."""

    missing: str
    here: str
    waited_s: float


@dataclass(frozen=True)
class Start:
    """All nodes have joined: start the ranks of this attempt."""

    attempt: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class StopWorkers:
    """Something failed elsewhere: end this node's ranks, whose failures are secondary."""

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
    | StacksAsked
    | Bye
    | Heartbeat
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
        StacksAsked,
        Bye,
        Heartbeat,
        Waiting,
        Start,
        StopWorkers,
        Verdict,
    )
}


def encode(message: Message) -> bytes:
    """Encode a message as JSON without a newline."""
    return json.dumps({"type": type(message).__name__, **vars(message)}).encode()


def decode(line: bytes) -> Message:
    """Decode what `encode` has made; raises ValueError for anything else."""
    try:
        record = json.loads(line)
        return _TYPES[record.pop("type")](**record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a message of a dist-train agent: {line[:80]!r}") from error
