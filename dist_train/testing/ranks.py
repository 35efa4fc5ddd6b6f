"""A function on n ranks, each a process: with a deadline, and with every rank's traceback."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dist_train.testing.processes import descendants, end
from dist_train.testing.rank_process import ERROR, VALUE, rank_environ, rank_main

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_S = 0.02
# For the dump of a stack that was asked for, and for a rank to end after its answer.
_DUMP_S = 1.0
_END_S = 15.0


class RanksFailed(Exception):
    """Some ranks raised, died or did not answer.

    Attributes:
        tracebacks: rank -> its traceback, or its stack where it had to be killed.
    """

    def __init__(self, n: int, tracebacks: Mapping[int, str]) -> None:
        parts = [f"--- rank {rank} ---\n{text.rstrip()}" for rank, text in sorted(tracebacks.items())]
        super().__init__("\n".join([f"{len(tracebacks)} of {n} ranks failed", *parts]))
        self.tracebacks = dict(tracebacks)


def run_ranks(
    fn: Callable[..., Any],
    n: int,
    timeout_s: float = 60.0,
    *,
    args: Sequence[Any] = (),
    environ: Mapping[str, str] | None = None,
    start: Literal["fork", "spawn"] = "fork",
    after_failure_s: float = 5.0,
) -> list[Any]:
    """Run `fn(*args)` on n processes; returns what each returned (pickled), in rank order.

    Each has torchrun's variables, a store served by this process at a port of its own, and one
    thread: both `dist_train.init()` and `torch.distributed.init_process_group("gloo")` work. A run
    that `fn` leaves open is closed.

    Args:
        fn: called on every rank.
        n: number of ranks.
        timeout_s: for all together; then every rank that still runs writes its stack and is killed.
        args: its arguments.
        environ: further variables for every rank.
        start: fork starts in milliseconds and takes any function, but the calling process must hold
            no process group and have run no CUDA; spawn takes a function that can be imported.
        after_failure_s: how long the others may go on once a rank has failed: they may wait for it.

    Raises:
        RanksFailed: with the traceback of every rank that failed.
    """
    context = multiprocessing.get_context(start)
    with _store() as port, tempfile.TemporaryDirectory(prefix="dist-train-ranks-") as folder:
        ranks: list[_Rank] = []
        try:
            for rank in range(n):
                variables = {**rank_environ(rank, n, port), **(environ or {})}
                ranks.append(_Rank.start(context, rank, fn, tuple(args), variables, Path(folder)))
            _wait(ranks, time.monotonic() + timeout_s, timeout_s, after_failure_s)
        finally:
            for each in ranks:
                each.end()
    failures = {each.rank: each.failure for each in ranks if each.failure is not None}
    if failures:
        raise RanksFailed(n, failures)
    return [each.value for each in ranks]


@dataclass
class _Rank:
    """One rank as its parent sees it."""

    rank: int
    process: BaseProcess
    answers: Connection
    stack: Path
    value: Any = None
    answered: bool = False
    failure: str | None = None

    @classmethod
    def start(
        cls,
        context: Any,
        rank: int,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        environ: dict[str, str],
        folder: Path,
    ) -> _Rank:
        stack = folder / f"stack-{rank}"
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=rank_main, args=(fn, args, environ, str(stack), theirs), name=f"rank-{rank}"
        )
        process.start()
        theirs.close()
        return cls(rank, process, ours, stack)

    def look(self) -> None:
        """Take an answer that has come, or see that none will."""
        if self.done:
            return
        dead = not self.process.is_alive()  # asked before the pipe: what it wrote last is not missed
        try:
            if not self.answered and self.answers.poll(0):
                self._take(self.answers.recv_bytes())
        except EOFError:
            pass
        if dead and not self.answered:
            self.failure = f"ended without an answer: {_cause(self.process.exitcode)}"

    def _take(self, answer: bytes) -> None:
        self.answered = True
        kind, payload = answer[:1], answer[1:]
        if kind == ERROR:
            self.failure = payload.decode()
        elif kind == VALUE:
            self.value = pickle.loads(payload)

    @property
    def done(self) -> bool:
        """Nothing more is expected of it."""
        return self.failure is not None or (self.answered and not self.process.is_alive())

    def ask_for_stack(self) -> None:
        """faulthandler writes it from a C signal handler: also when the rank hangs inside C code."""
        if self.process.is_alive() and self.process.pid is not None and self.stack.exists():
            os.kill(self.process.pid, signal.SIGUSR1)

    def end(self) -> None:
        """Kill it with its own children, if it lives; let go of its pipe."""
        pid = self.process.pid
        if pid is not None and self.process.is_alive():
            children = descendants(pid)
            self.process.kill()
            end(children)
        self.process.join()
        self.answers.close()


def _wait(ranks: Sequence[_Rank], deadline: float, timeout_s: float, after_failure_s: float) -> None:
    why = f"no answer after {timeout_s:g} s"
    failed = False
    while pending := [each for each in ranks if not each.done]:
        if not failed and any(each.failure is not None for each in ranks):
            failed = True
            if time.monotonic() + after_failure_s < deadline:
                deadline = time.monotonic() + after_failure_s
                why = f"still running {after_failure_s:g} s after another rank failed"
        if time.monotonic() >= deadline:
            _give_up(pending, why)
            return
        if all(each.answered for each in pending):
            deadline, why = min(deadline, time.monotonic() + _END_S), "answered, but did not end"
        time.sleep(_POLL_S)
        for each in pending:
            each.look()


def _give_up(pending: Sequence[_Rank], why: str) -> None:
    for each in pending:
        each.ask_for_stack()
    time.sleep(_DUMP_S)
    for each in pending:
        stack = each.stack.read_text(errors="replace") if each.stack.exists() else "(it had not begun)"
        each.failure = f"{why}; its stack:\n{stack}"


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


@contextmanager
def _store() -> Iterator[int]:
    """A store that lives in this process: its port is chosen and bound in one act."""
    from dist_train.distributed.stores import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store
