"""Run a function on n ranks, each a process, with a deadline and every rank's traceback."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from dist_train.testing.kernel_view import kernel_view
from dist_train.testing.process_tree import descendants, end
from dist_train.testing.rank_process import ERROR, VALUE, rank_environ, rank_main

_POLL_S = 0.02
# Time for a requested stack dump, and for a rank to exit after its answer.
_DUMP_S = 1.0
_END_S = 15.0


class RanksFailed(Exception):
    """Some ranks raised, were killed or did not answer.

    Attributes:
        tracebacks: rank -> its traceback, or its stack if it had to be killed.
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
    """Run `fn(*args)` in n processes; returns their values (by pickle) in rank order.

    Each has torchrun's variables, a TCPStore that this process serves, and one thread: both
    `dist_train.init()` and `torch.distributed.init_process_group("gloo")` work. A run that `fn`
    leaves open is closed.

    Args:
        fn: called on every rank.
        n: number of ranks.
        timeout_s: for all together; then every running rank writes its stack and is killed.
        args: its arguments.
        environ: additional variables of every rank.
        start: fork takes milliseconds and any function, but the caller must have no process group and
            must not have initialized CUDA; spawn needs a function that can be imported.
        after_failure_s: time for the other ranks once one has failed: they may be waiting for it.

    Raises:
        RanksFailed: with the traceback of every rank that failed.
    """
    context = multiprocessing.get_context(start)
    with _listen() as listener, tempfile.TemporaryDirectory(prefix="dist-train-ranks-") as folder:
        port = listener.getsockname()[1]
        ranks: list[_Rank] = []
        store: object = None
        try:
            for rank in range(n):
                variables = {**rank_environ(rank, n, port), **(environ or {})}
                ranks.append(_Rank.start(context, rank, fn, tuple(args), variables, Path(folder)))
            # After the forks: a rank that is forked beside the server's thread inherits the locks which that
            # holds at the moment (of the C library's resolver, say), and nobody ever releases them there.
            store = _serve(listener)
            _wait(ranks, time.monotonic() + timeout_s, timeout_s, after_failure_s)
        finally:
            for each in ranks:
                each.end()
            del store
    failures = {each.rank: each.failure for each in ranks if each.failure is not None}
    if failures:
        raise RanksFailed(n, failures)
    return [each.value for each in ranks]


@dataclass
class _Rank:
    """Parent's view of one rank."""

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

    def poll(self) -> None:
        """Receive the answer if it has come; note a rank that ended without one."""
        if self.done:
            return
        ended = not self.process.is_alive()  # before reading the pipe, so that a last answer is not missed
        try:
            if not self.answered and self.answers.poll(0):
                self._take(self.answers.recv_bytes())
        except EOFError:
            pass
        if ended and not self.answered:
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
        """Whether it has failed, or has answered and exited."""
        return self.failure is not None or (self.answered and not self.process.is_alive())

    def ask_for_stack(self) -> None:
        """Request a stack dump; faulthandler's C handler also works while the rank hangs in C code."""
        if self.process.is_alive() and self.process.pid is not None and self.stack.exists():
            os.kill(self.process.pid, signal.SIGUSR1)

    def end(self) -> None:
        """Kill it with its children if it is running; close its pipe."""
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
    looked, longest_s = time.monotonic(), 0.0  # tells a machine that stood still from ranks that hang
    while pending := [each for each in ranks if not each.done]:
        looked, longest_s = time.monotonic(), max(longest_s, time.monotonic() - looked)
        if not failed and any(each.failure is not None for each in ranks):
            failed = True
            if time.monotonic() + after_failure_s < deadline:
                deadline = time.monotonic() + after_failure_s
                why = f"still running {after_failure_s:g} s after another rank failed"
        if time.monotonic() >= deadline:
            _give_up(pending, f"{why} (the longest pause of its parent: {longest_s:.2g} s)")
            return
        if all(each.answered for each in pending):
            deadline, why = min(deadline, time.monotonic() + _END_S), "answered, but did not end"
        time.sleep(_POLL_S)
        for each in pending:
            each.poll()


def _give_up(pending: Sequence[_Rank], why: str) -> None:
    for each in pending:
        each.ask_for_stack()
    time.sleep(_DUMP_S)
    for each in pending:
        stack = each.stack.read_text(errors="replace") if each.stack.exists() else "(not started)"
        seen = "" if each.process.pid is None else kernel_view(each.process.pid)
        each.failure = f"{why}; its stack:\n{stack.rstrip()}\n{seen}"
    assert pending[0].failure is not None
    pending[0].failure += f"\nthe process that serves the ranks' store:\n{kernel_view(os.getpid())}"


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _listen() -> socket.socket:
    """Listen for the ranks' clients of their store; port 0, so that choosing and binding are one step.

    On an IPv4 socket: torch's server has one thread, which looks up the name of each client's address. That
    of an IPv4 client of a socket for both families (::ffff:127.0.0.1) is in no /etc/hosts, so that a name
    server that answers in seconds stops all ranks for half a minute.
    """
    from dist_train.distributed.stores.tcp_store import listen_on_loopback

    return listen_on_loopback()


def _serve(listener: socket.socket) -> object:
    from dist_train.distributed.stores.tcp_store import serve_at

    return serve_at(listener)
