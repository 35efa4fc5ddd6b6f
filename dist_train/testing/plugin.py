"""pytest plug-in: a leak check around every test, `require`, and a report of skips.

    pytest_plugins = ["dist_train.testing.plugin"]     # in the top conftest.py

Every test runs in an empty directory of its own and fails when it leaves a file there, or a process,
variable or thread. Use tmp_path for files, monkeypatch for variables.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_train.testing.leak_check import GRACE_S, LeakCheck
from dist_train.testing.required_components import (
    ALLOW_SKIP,
    ALLOWED,
    allowed_skips,
    in_ci,
    missing_text,
    when_missing,
)


def require(component: str, reason: str) -> None:
    """Fail the test because a component is missing, or skip it where that is allowed.

    Args:
        component: its short name: slurm, kubernetes.
        reason: what was not found.
    """
    outcome = when_missing(component)
    if outcome == "fail":
        pytest.fail(missing_text(component, reason), pytrace=False)
    pytest.skip(f"{ALLOWED}{component}: {reason}" if outcome == "allowed" else f"{component}: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --leak-grace-s."""
    text = "seconds that processes and threads may take to end after their test"
    parser.addoption("--leak-grace-s", type=float, default=GRACE_S, help=text)


class _EmptyFolders:
    """Working directories of tests: one that is left as it was made is given to the next test too."""

    def __init__(self) -> None:
        self._unused: Path | None = None

    def take(self) -> Path:
        folder, self._unused = self._unused, None
        return folder or Path(tempfile.mkdtemp(prefix="dist-train-cwd-")).resolve()

    def give_back(self, folder: Path) -> None:
        if self._unused is None and _is_empty(folder):
            self._unused = folder
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    try:
        return stat.S_IMODE(folder.lstat().st_mode) == stat.S_IRWXU and not os.listdir(folder)
    except OSError:
        return False


@pytest.fixture(scope="session")
def _empty_folders() -> Iterator[_EmptyFolders]:
    folders = _EmptyFolders()
    yield folders
    shutil.rmtree(folders.take(), ignore_errors=True)


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest, _empty_folders: _EmptyFolders) -> Iterator[None]:
    """Fail a test that leaves something behind; leaked processes are killed."""
    before = Path.cwd()
    folder = _empty_folders.take()
    os.chdir(folder)
    check = LeakCheck(folder)
    try:
        yield
        found = check.leaks(request.config.getoption("--leak-grace-s"))
    finally:
        os.chdir(before)
        _empty_folders.give_back(folder)
    if found:
        pytest.fail("the test left behind:\n  " + "\n  ".join(found), pytrace=False)


class SkipReport:
    """Count skips by reason; under CI=true one that was not allowed fails the session."""

    def __init__(self) -> None:
        self.allowed: Counter[str] = Counter()
        self.others: dict[str, str] = {}

    def note(self, nodeid: str, reason: str) -> None:
        """Count a skipped test, or a module that was skipped during collection."""
        text = reason.removeprefix("Skipped: ")
        component = text.removeprefix(ALLOWED).partition(":")[0]
        if text.startswith(ALLOWED) and component in allowed_skips():
            self.allowed[component] += 1
        else:
            self.others[nodeid] = text

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test; called on xdist's controller too."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.note(report.nodeid, _reason(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that skips itself; each xdist worker reports it."""
        if report.skipped:
            self.others.setdefault(report.nodeid, _reason(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session under CI=true for a skip that was not allowed."""
        if self.others and in_ci() and session.exitstatus in (0, pytest.ExitCode.OK):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the allowed count, and under CI=true every skip that was not allowed."""
        for component, count in sorted(self.allowed.items()):
            terminalreporter.write_line(f"skipped as {ALLOW_SKIP} allows: {count} for want of {component}")
        if self.others and in_ci():
            terminalreporter.section("skipped, and CI allows no skip", red=True)
            for nodeid, reason in sorted(self.others.items()):
                terminalreporter.write_line(f"{nodeid}: {reason}")


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def pytest_configure(config: pytest.Config) -> None:
    """Register the report once: on xdist's controller, or in the only process."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipReport(), "dist-train-skips")
