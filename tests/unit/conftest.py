"""Several ranks as forked children of the test, with a deadline and every rank's traceback."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DDP imports it: once here, not once in every child

# fn(meeting, extra arguments ...) -> JSON; `meeting` is a fresh file:// init method.
Ranks = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DIST_TRAIN_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Run fn on n ranks and give what each returned, in rank order."""
    numbers = iter(range(1000))

    def run(n: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 50.0) -> list[Any]:
        return run_forked(n, fn, (f"file://{tmp_path}/meeting-{next(numbers)}", *args), timeout_s)

    return run


def run_forked(n: int, fn: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> list[Any]:
    context = multiprocessing.get_context("fork")
    ends, children = [], []
    for rank in range(n):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(rank, n, fn, args, theirs), daemon=True)
        child.start()
        theirs.close()
        ends.append(ours)
        children.append(child)
    deadline = time.monotonic() + timeout_s
    answers = [_receive(end, deadline) for end in ends]
    for child in children:
        child.join(max(0.1, min(10.0, deadline - time.monotonic())))
        if child.is_alive():
            child.kill()
            child.join()
            answers.append({"error": f"pid {child.pid} had to be killed"})
    errors = [f"--- rank {rank}\n{a['error']}" for rank, a in enumerate(answers) if "error" in a]
    assert not errors, "\n".join(errors)
    return [answer["value"] for answer in answers]


def _child(rank: int, n: int, fn: Callable[..., Any], args: tuple[Any, ...], end: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    try:
        answer = {"value": fn(*args)}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    end.send_bytes(json.dumps(answer).encode())


def _receive(end: Connection, deadline: float) -> dict[str, Any]:
    try:
        if end.poll(max(0.0, deadline - time.monotonic())):
            answer: dict[str, Any] = json.loads(end.recv_bytes())
            return answer
    except EOFError:
        return {"error": "ended without an answer"}
    return {"error": "no answer before the deadline"}


@pytest.fixture
def fill_disk() -> Iterator[Callable[[], None]]:
    """Once called, the system refuses every byte beyond a file's first 20 000, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
