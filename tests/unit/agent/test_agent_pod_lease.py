"""One owner among pods that have the same host name and the same pid: only their uids differ."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent import timeouts
from dist_train.agent.command_line import read_settings
from dist_train.agent.platform import pod_lease
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.platform.pod_lease import PodLease
from dist_train.agent.records.lease import Lease
from dist_train.errors import AttemptLost, ConfigError, Preempted
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HEARTBEAT_LOST_S", 0.6)
    monkeypatch.setattr(timeouts, "HOST_DEATH_S", 1.2)
    monkeypatch.setattr(pod_lease, "_POLL_S", 0.02)


def of_pod(run: RunDir, pod: str, job: str = "train.0", launcher: str = "kubernetes") -> Lease:
    environ = {
        env.RUN_DIR: str(run.path),
        env.RUN_ID: "r",
        env.LAUNCHER: launcher,
        env.NNODES: "1",
        env.NPROC_PER_NODE: "1",
        env.NODE_RANK: "0",
        env.RDZV: "tcp://train-0.train:29400",
        env.JOB: job,
        env.POD_UID: pod,
    }
    return platform_of(launcher).lease(read_settings(["script", "x"], environ))


def owner(run: RunDir) -> str:
    record = read_json(run.lease) or {}
    return str(record.get("pod"))


def held(run: RunDir, pod: str, job: str = "train.0") -> Lease:
    lease = of_pod(run, pod, job)
    lease.take()
    return lease


def age(run: RunDir, seconds: float) -> None:
    """Make the last heartbeat so many seconds old."""
    then = time.time() - seconds
    os.utime(run.lease, (then, then))


def test_only_pods_have_it(run: RunDir) -> None:
    assert isinstance(of_pod(run, "a"), PodLease)
    assert not isinstance(of_pod(run, "a", launcher="slurm"), PodLease)


def test_a_released_lease_is_taken_at_once(run: RunDir) -> None:
    held(run, "a").release()
    began = time.monotonic()
    held(run, "b")
    assert owner(run) == "b"
    assert time.monotonic() - began < timeouts.HEARTBEAT_LOST_S


def test_an_owner_without_heartbeats_is_replaced_at_once(run: RunDir) -> None:
    held(run, "a")
    age(run, 5)
    held(run, "b")
    assert owner(run) == "b"


def test_a_killed_owner_is_waited_for_until_its_heartbeat_is_old(run: RunDir) -> None:
    """The new pod's host name and pid are the old one's: they must not count as a sign of life."""
    held(run, "a")
    began = time.monotonic()
    held(run, "b")
    assert time.monotonic() - began >= timeouts.HEARTBEAT_LOST_S * 0.8
    assert owner(run) == "b"


def test_an_owner_that_lives_on_sees_the_claim_and_releases_the_run(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "HEARTBEAT_LOST_S", 60)
    monkeypatch.setattr(timeouts, "HOST_DEATH_S", 60)
    old = held(run, "a")
    new = of_pod(run, "b")
    taking = threading.Thread(target=new.take)
    taking.start()
    until(lambda: old.superseded() == "b", while_beating=old)
    old.release()
    taking.join(5)
    assert owner(run) == "b"
    assert new.superseded() is None, "its own claim is not against itself"


def until(ready: Callable[[], bool], while_beating: Lease) -> None:
    deadline = time.monotonic() + 5
    while not ready():
        assert time.monotonic() < deadline
        while_beating.beat(1)
        time.sleep(0.02)


def test_an_owner_that_does_not_end_is_79_and_names_its_pod(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "HEARTBEAT_LOST_S", 60)
    monkeypatch.setattr(timeouts, "HOST_DEATH_S", 0.1)
    held(run, "a")
    with pytest.raises(AttemptLost, match="still at work for an earlier pod of this job: pod a"):
        held(run, "b")
    assert owner(run) == "a"


def test_another_jobs_agent_as_owner_is_78(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HOST_DEATH_S", 0.1)
    held(run, "a", job="other.0")
    with pytest.raises(ConfigError, match=r"at work already for another job, other.0: pod a"):
        held(run, "b")
    assert not (run.control / "superseded").exists(), "no other job is asked to end"


def test_an_owner_that_counted_as_lost_never_writes_again(run: RunDir) -> None:
    """Its node was frozen and goes on: it sees the new owner, and ends."""
    old = held(run, "a")
    age(run, 5)
    new = held(run, "b")
    old.beat(7)
    assert owner(run) == "b"
    assert old.superseded() == "b"
    old.release()
    assert owner(run) == "b"
    assert new.superseded() is None


def test_a_claim_of_a_pod_that_has_gone_does_not_count_against_a_later_one(run: RunDir) -> None:
    (run.control / "superseded").write_text("train.0 gone\n")
    assert held(run, "c").superseded() is None


def test_a_stop_ends_the_wait(run: RunDir) -> None:
    held(run, "a")
    with pytest.raises(Preempted):
        of_pod(run, "b").take(lambda: True)
    assert owner(run) == "a"


def test_the_clock_leaves_nothing_behind(run: RunDir) -> None:
    held(run, "a")
    held(run, "b")
    assert not list(run.control.iterdir())
