"""The fork that runs tests: it takes their numbers from a pipe, and sends the reports."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest
from forked_workers.huge_pages import use_huge_pages

from dist_train.jobs.parent_death_signal import end_with_parent

# Messages to the pool: a kind, and what belongs to it.
BEGIN, REPORTS, WARNING, END = "begin", "reports", "warning", "end"
WARNING_PARTS = ("message", "category", "filename", "lineno")
# Huge pages fall apart where this process writes while a fork shares them, and are made again so often.
REFRESH_TESTS = 200
# What a report of a passed test has from its test: it is not sent.
OF_ITEM = ("_id", "location", "keywords")


def run_worker(
    session: pytest.Session, name: str, connection: Connection, base: Path, parent: int
) -> NoReturn:
    """Run tests until there are no more, in a fork of the process that has collected them.

    Args:
        name: gw0 and so on, as pytest-xdist calls its workers.
        connection: lists of numbers of tests are received from it; an empty one is the end.
        base: the session's folder for tmp_path, in which this worker has its own.
        parent: pid of the pool's process; the worker ends with it.
    """
    code = 1
    try:
        end_with_parent(parent, signal.SIGKILL)
        _become_worker(session, name, base)
        session.config.pluginmanager.register(_Forwarder(session.config, connection))
        _run(session, connection)
        connection.send((END, None))
        code = 0
    except BaseException:
        with suppress(Exception):  # the sessions' fixtures may be clusters
            session._setupstate.teardown_exact(None)
        with suppress(Exception):
            session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)  # the pool's process alone runs what is registered for the end


def _become_worker(session: pytest.Session, name: str, base: Path) -> None:
    """Take nothing of the parent's that only one process may have: its terminal, its capture, its folder."""
    config = session.config
    os.environ["PYTEST_XDIST_WORKER"] = name
    plugins = config.pluginmanager
    terminal = plugins.getplugin("terminalreporter")
    for plugin in plugins.get_plugins():
        # Those that tell the user: they have the reports from the pool.
        if hasattr(plugin, "pytest_runtest_logreport") and hasattr(plugin, "pytest_terminal_summary"):
            plugins.unregister(plugin)
    plugins.register(_NoTerminal(terminal), "terminalreporter")
    capture = plugins.getplugin("capturemanager")
    if capture is not None:  # a file of its own: forks share the offset of the parent's
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    config.option.basetemp = str(base / f"popen-{name}")
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)


def _run(session: pytest.Session, connection: Connection) -> None:
    left: deque[int] = deque()
    open_ended = True
    begun = 0
    while True:
        # The last one is kept until its successor is known: fixtures that both need stay.
        while open_ended and len(left) < 2:
            numbers = connection.recv()
            open_ended = bool(numbers)
            left.extend(numbers)
        if not left:
            break
        number = left.popleft()
        if begun % REFRESH_TESTS == 0:
            use_huge_pages()
        begun += 1
        item = session.items[number]
        connection.send((BEGIN, number))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=session.items[left[0]] if left else None)
    session._setupstate.teardown_exact(None)


class _NoTerminal:
    """What plug-ins ask the terminal's reporter for: its writer."""

    def __init__(self, reporter: Any) -> None:
        self._tw = reporter._tw


class _Forwarder:
    """Sends reports and warnings to the pool."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._reports: list[Any] = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it until its test has ended."""
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Send the test's reports, of what passed no more than the pool cannot know."""
        self._connection.send((REPORTS, [self._plain(report) for report in self._reports]))
        self._reports.clear()

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning."""
        sent = {name: getattr(warning_message, name) for name in WARNING_PARTS}
        try:
            pickle.dumps(sent)
        except Exception:  # an argument of the warning
            sent.update(message=UserWarning(str(sent["message"])), category=UserWarning)
        self._connection.send((WARNING, (sent, when, nodeid, location)))

    def _plain(self, report: pytest.TestReport) -> dict[str, Any]:
        if report.passed and type(report) is pytest.TestReport and report.longrepr is None:
            return {name: value for name, value in vars(report).items() if name not in OF_ITEM}
        config = self._config
        found: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
        return found
