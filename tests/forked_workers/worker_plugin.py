"""pytest plug-in: `--forked-workers N` runs the collected tests in N forks of this process.

Instead of pytest-xdist, of whose workers each imports torch and collects all tests again, and turns three
reports of each test into text and back: with 5000 short tests that is a quarter of the CPU time.
"""

from __future__ import annotations

import pytest
from forked_workers.worker_pool import WorkerPool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --forked-workers."""
    text = "processes that run the tests, forked after collection; 0: none but this one"
    parser.addoption("--forked-workers", type=int, default=0, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; pytest-xdist does where it is loaded."""
    config.addinivalue_line("markers", "xdist_group(name): tests of one group run in one worker")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; in this process if none are asked for, or pytest itself ends the session."""
    count = session.config.getoption("--forked-workers")
    options = session.config.option
    unfit = session.testsfailed and not options.continue_on_collection_errors
    if not count or unfit or options.collectonly or not session.items:
        return None
    WorkerPool(session, min(count, len(session.items))).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True
