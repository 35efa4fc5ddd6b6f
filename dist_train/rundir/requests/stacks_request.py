"""`dist-train stacks` asks by a file in control/, and each node's agent answers by one."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dist_train.errors import UnavailableError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import read_json, write_json_atomic

# An agent has asked its ranks after 5 s; beside that, node 0 sees the request, and who asks the answers,
# through a shared disk.
BOUND_S = 30.0
_POLL_S = 0.1
_FOLDER = "stacks-"
_REQUEST = "request.json"


@dataclass(frozen=True)
class RankStacks:
    """The stacks of one rank.

    Args:
        text: of all its threads; None where it gave none, see `problem`.
        how: how they were read, where not by the rank itself.
    """

    rank: int
    host: str
    pid: int
    text: str | None = None
    how: str = ""
    problem: str = ""


@dataclass(frozen=True)
class StacksRequest:
    """A request: its name, and the ranks that are asked (empty: all)."""

    id: str
    ranks: tuple[int, ...] = ()


def ask_and_wait(
    run: RunDir, nodes: Collection[int], ranks: Sequence[int] = (), bound_s: float = BOUND_S
) -> list[RankStacks]:
    """Ask, and wait for the answers of these nodes; return those that have come within the bound, by rank."""
    request = ask_for_stacks(run, ranks)
    deadline = time.monotonic() + bound_s
    try:
        while True:
            answers = read_answers(run, request.id)
            if set(nodes) <= answers.keys() or time.monotonic() > deadline:
                found = [one for of_node in answers.values() for one in of_node]
                return sorted(found, key=lambda one: one.rank)
            time.sleep(_POLL_S)
            if not run.stacks_request.exists():  # another who had asked has removed it
                run.stacks_request.touch(0o600)
    finally:
        remove_request(run, request)


def ask_for_stacks(run: RunDir, ranks: Sequence[int] = ()) -> StacksRequest:
    """Write a request, beside those of others, and touch the file on which node 0 has an eye."""
    request = StacksRequest(secrets.token_hex(6), tuple(ranks))
    folder = answers_folder(run, request.id)
    try:
        folder.mkdir(mode=0o700)
        write_json_atomic(folder / _REQUEST, asdict(request))
        run.stacks_request.touch(0o600)
    except PermissionError:  # another user's run: the command names its owner
        remove_request(run, request)
        raise
    except OSError as error:
        remove_request(run, request)
        raise UnavailableError(
            f"the run cannot be asked for stacks: {error.strerror}",
            cause=f"the request is left in {run.control}, which has to be writable here",
            hint=f"df -h {run.path}",
        ) from error
    return request


def read_requests(run: RunDir) -> Iterator[StacksRequest]:
    """All requests that are there; what cannot be one is passed over."""
    for path in run.control.glob(f"{_FOLDER}*/{_REQUEST}"):
        try:
            record = read_json(path) or {}
            yield StacksRequest(str(record["id"]), tuple(int(rank) for rank in record["ranks"]))
        except (LookupError, TypeError, ValueError):
            continue


def write_answer(run: RunDir, request: str, node: int, host: str, found: Sequence[RankStacks]) -> None:
    """Answer for one node; raises OSError, also where the one who asked waits no more."""
    record = {"host": host, "ranks": [asdict(one) for one in found]}
    write_json_atomic(answers_folder(run, request) / f"node-{node}.json", record)


def read_answers(run: RunDir, request: str) -> dict[int, list[RankStacks]]:
    """Node -> the stacks of its ranks, as far as they are there."""
    return {node: [RankStacks(**one) for one in record["ranks"]] for node, record in _answers(run, request)}


def remove_request(run: RunDir, request: StacksRequest) -> None:
    """Remove it with its answers, and the common file if nobody else asks."""
    shutil.rmtree(answers_folder(run, request.id), ignore_errors=True)
    with suppress(OSError):
        if not any(run.control.glob(f"{_FOLDER}*")):
            run.stacks_request.unlink(missing_ok=True)


def answers_folder(run: RunDir, request: str) -> Path:
    """Where a request and the answers to it are."""
    return run.control / f"{_FOLDER}{request}"


def _answers(run: RunDir, request: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for path in answers_folder(run, request).glob("node-*.json"):
        node = path.stem.removeprefix("node-")
        if node.isdecimal() and (record := read_json(path)) is not None:
            yield int(node), record
