"""pytest's part: the leak police around every test, `require`, and the account of skips.

    pytest_plugins = ["dist_train.testing.plugin"]     # in the top conftest.py

Every test runs in an empty directory of its own; what it leaves there, and every process, variable
or thread that it leaves, makes it fail. Use tmp_path for files, monkeypatch for variables.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_train.testing.components import (
    ALLOW_SKIP,
    ALLOWED,
    allowed_skips,
    in_ci,
    missing_text,
    when_missing,
)
from dist_train.testing.leaks import GRACE_S, Watch


def require(component: str, reason: str) -> None:
    """Call where a real component is found missing: fails the test, or skips it where that is allowed.

    Args:
        component: its short name: slurm, kubernetes.
        reason: what was looked for and not found.
    """
    verdict = when_missing(component)
    if verdict == "fail":
        pytest.fail(missing_text(component, reason), pytrace=False)
    pytest.skip(f"{ALLOWED}{component}: {reason}" if verdict == "allowed" else f"{component}: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How patient the leak police is."""
    text = "seconds that processes and threads may take to end after their test"
    parser.addoption("--leak-grace-s", type=float, default=GRACE_S, help=text)


@pytest.fixture(autouse=True)
def leak_police(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves something behind, naming it; leaked processes are killed."""
    before = Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix="dist-train-cwd-")).resolve()
    os.chdir(folder)
    watch = Watch(folder)
    try:
        yield
        found = watch.leaks(request.config.getoption("--leak-grace-s"))
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)
    if found:
        pytest.fail("the test left behind:\n  " + "\n  ".join(found), pytrace=False)


class SkipAccount:
    """Counts skips by their reason; in continuous integration one that nobody allowed fails the session."""

    def __init__(self) -> None:
        self.allowed: Counter[str] = Counter()
        self.others: dict[str, str] = {}

    def note(self, nodeid: str, reason: str) -> None:
        """One skipped test, or one module that was skipped while it was collected."""
        text = reason.removeprefix("Skipped: ")
        component = text.removeprefix(ALLOWED).partition(":")[0]
        if text.startswith(ALLOWED) and component in allowed_skips():
            self.allowed[component] += 1
        else:
            self.others[nodeid] = text

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for every test, on xdist's controller too."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.note(report.nodeid, _reason(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself; each xdist worker reports it."""
        if report.skipped:
            self.others.setdefault(report.nodeid, _reason(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing may be left out unsaid in continuous integration."""
        if self.others and in_ci() and session.exitstatus in (0, pytest.ExitCode.OK):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The count, and in continuous integration every skip that nobody allowed."""
        for component, count in sorted(self.allowed.items()):
            terminalreporter.write_line(f"skipped as {ALLOW_SKIP} allows: {count} for want of {component}")
        if self.others and in_ci():
            terminalreporter.section("skipped, and CI allows no skip", red=True)
            for nodeid, reason in sorted(self.others.items()):
                terminalreporter.write_line(f"{nodeid}: {reason}")


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def pytest_configure(config: pytest.Config) -> None:
    """The account is kept once: on xdist's controller, or in the only process."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipAccount(), "dist-train-skips")
