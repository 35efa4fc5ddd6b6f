"""Run a session's tests in forks of its process: what to run goes to them, reports come back."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from forked_workers.item_queue import ItemQueue
from forked_workers.worker_process import BEGIN, END, REPORTS, WARNING, WARNING_PARTS, run_worker

# Lists of tests that a worker has: the one that it runs, and the one after it.
AHEAD = 2
# Time to take down fixtures (clusters among them) when the session is interrupted.
END_S = 60.0
_TYPE = "$report_type"
# Of one session, as pytest-xdist has it: by it all workers find the same command server (warm_commands).
_SESSION = "PYTEST_XDIST_TESTRUNUID"


@dataclass
class _Worker:
    name: str
    pid: int
    pidfd: int
    connection: Connection
    # Lists of tests that it was given and has not finished.
    given: deque[list[int]] = field(default_factory=deque)
    running: int | None = None
    has_all: bool = False

    def begin(self, number: int) -> None:
        """It runs this test now."""
        self.running = number

    def finish(self) -> None:
        """It has run the test."""
        assert self.running is not None
        self.given[0].remove(self.running)
        self.running = None
        if not self.given[0]:
            self.given.popleft()


class WorkerPool:
    """Forks of this process that run a session's tests.

    Args:
        session: after collection.
        count: of forks.
    """

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._queue = ItemQueue(session.items, count)
        self._count = count
        self._workers: list[_Worker] = []
        self._names = iter(range(10**6))
        self._base: Path = session.config._tmp_path_factory.getbasetemp()
        os.environ.setdefault(_SESSION, secrets.token_hex(16))

    def run(self) -> None:
        """Run all tests; returns early where the session is to stop."""
        try:
            for _ in range(self._count):
                self._start()
            while self._workers:
                self._wait()
        finally:
            self._end_all()

    def _start(self) -> None:
        ours, theirs = Pipe()
        name, parent = f"gw{next(self._names)}", os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for each in self._workers:
                each.connection.close()
                os.close(each.pidfd)
            run_worker(self._session, name, theirs, self._base, parent)
        theirs.close()
        worker = _Worker(name, pid, os.pidfd_open(pid), ours)
        self._workers.append(worker)
        self._give(worker)

    def _give(self, worker: _Worker) -> None:
        """Let it have work for as long as its answer takes to come."""
        while len(worker.given) < AHEAD and not worker.has_all:
            stops = self._session.shouldfail or self._session.shouldstop
            numbers = [] if stops else self._queue.take()
            if numbers:
                worker.given.append(list(numbers))
            else:
                worker.has_all = True
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is seen next
                worker.connection.send(numbers)

    def _wait(self) -> None:
        by_source: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_source[worker.connection] = by_source[worker.pidfd] = worker
        ready = {id(by_source[source]): by_source[source] for source in wait(list(by_source))}
        for worker in ready.values():
            ended = bool(wait([worker.pidfd], 0))  # before what it has sent is read, all of which then counts
            if self._receive(worker, everything=ended) or ended:
                self._forget(worker)

    def _receive(self, worker: _Worker, everything: bool) -> bool:
        """Take what it has sent; true once it has said that it ends."""
        while worker.connection.poll(0):
            try:
                kind, content = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                return False
            if kind == END:
                return True
            self._take(worker, kind, content)
            if not everything:
                break
        return False

    def _take(self, worker: _Worker, kind: str, content: Any) -> None:
        hook = self._session.config.hook
        if kind == BEGIN:
            worker.begin(content)
            item = self._session.items[content]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == REPORTS:
            assert worker.running is not None
            item = self._session.items[worker.running]
            for each in content:
                hook.pytest_runtest_logreport(report=self._report(item, each))
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            worker.finish()
            self._give(worker)
        elif kind == WARNING:
            found, when, nodeid, location = content
            message = warnings.WarningMessage(**{name: found[name] for name in WARNING_PARTS})
            arguments = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
            hook.pytest_warning_recorded.call_historic(kwargs=arguments)

    def _report(self, item: pytest.Item, content: dict[str, Any]) -> pytest.TestReport:
        config = self._session.config
        if _TYPE in content:
            found: pytest.TestReport = config.hook.pytest_report_from_serializable(
                config=config, data=content
            )
            return found
        keywords = dict.fromkeys(item.keywords, 1)
        return pytest.TestReport(item.nodeid, item.location, keywords, **content)  # type: ignore[arg-type]

    def _forget(self, worker: _Worker) -> None:
        """Note how a worker has ended; its tests that were not run go to a new one."""
        _, status = os.waitpid(worker.pid, 0)
        self._workers.remove(worker)
        worker.connection.close()
        os.close(worker.pidfd)
        left = [number for numbers in worker.given for number in numbers if number != worker.running]
        if worker.running is not None:
            self._report_loss(worker, os.waitstatus_to_exitcode(status))
        elif status:
            text = f"{worker.name} failed between two tests: {_ending(os.waitstatus_to_exitcode(status))}"
            self._session.shouldstop = self._session.shouldstop or text
        self._queue.give_back(left)
        if self._queue and not self._session.shouldstop and not self._session.shouldfail:
            self._start()

    def _report_loss(self, worker: _Worker, code: int) -> None:
        assert worker.running is not None
        item = self._session.items[worker.running]
        text = f"worker {worker.name} (pid {worker.pid}) ended while it ran this test: {_ending(code)}"
        keywords = dict.fromkeys(item.keywords, 1)
        report = pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call")  # type: ignore[arg-type]
        hook = self._session.config.hook
        hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _end_all(self) -> None:
        """Interrupt what still runs, as Ctrl-C does; kill what does not end."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGINT)
        deadline = time.monotonic() + END_S
        for worker in self._workers:
            if not wait([worker.pidfd], max(0.0, deadline - time.monotonic())):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
            worker.connection.close()
            os.close(worker.pidfd)
        self._workers.clear()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
