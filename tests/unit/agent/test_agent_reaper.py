"""Orphans are reaped, ranks and the agent's own children never: they are reaped where they were started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dist_train.agent.workers.reaper import reap, zombies


def ended_child(new_session: bool = True) -> subprocess.Popen[bytes]:
    """A child of this process that is a zombie."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""], start_new_session=new_session)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """Another session's process, which Linux has given to this one to reap."""
    child = ended_child()
    yield child
    child.wait()


def test_an_orphan_is_reaped_at_the_second_call(orphan: subprocess.Popen[bytes]) -> None:
    seen = reap(set(), set)
    assert orphan.pid in seen
    assert orphan.pid in zombies(), "another thread may be about to wait for a child that was just forked"
    reap(seen, set)
    assert orphan.pid not in zombies()


def test_a_rank_is_not_reaped() -> None:
    rank = ended_child()
    seen = reap(set(), lambda: {rank.pid})
    for _ in range(3):
        seen = reap(seen, lambda: {rank.pid})
    assert rank.pid in zombies()
    assert rank.wait() == 0


def test_the_agents_own_subprocess_is_not_listed() -> None:
    own = ended_child(new_session=False)
    assert own.pid not in zombies()
    own.wait()


def test_a_living_child_is_not_listed() -> None:
    living = subprocess.Popen(["sleep", "60"], start_new_session=True)
    time.sleep(0.05)
    assert living.pid not in zombies()
    living.kill()
    living.wait()
