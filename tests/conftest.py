"""For all tests: leak check, report of skips, one database for hypothesis, garbage collection."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

gc.disable()  # while torch and the tests are imported, until pytest_collection below

from hypothesis import configuration  # noqa: E402

pytest_plugins = ["dist_train.testing.plugin", "forked_workers.worker_plugin"]

# Every test runs in its own directory; without this each would get an example database there.
configuration.set_hypothesis_home_dir(Path(__file__).resolve().parent.parent / ".hypothesis")

# torch's TCPStore client looks up the name of the address that it connects to, in its IPv6 form
# (::ffff:127.0.0.1), which no /etc/hosts has: where the name server loses a datagram, a rank waits 5 s and
# asks again, up to the test's time-out. With these options of glibc (resolv.conf(5)) it waits 1 s.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

# A shell that is not interactive starts a command with `&` deaf to SIGINT, and all that it starts with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make proofs of all cases of a test but the first ones, where it has the marker `first_cases`.

    Before pytest leaves out what -m does not select.
    """
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("first_cases")
        if marker is None:
            continue
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        if seen[test] > marker.args[0]:
            item.add_marker(pytest.mark.proof)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt what exists now (torch, all tests) from the cyclic garbage collector.

    A collection looks at each of these million objects, and in a forked rank copies its page as well: with
    them, tests of ranks take twice the CPU time and three times the page faults.
    """
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
