"""A run whose training is complete while one of its pods is on a machine that does not respond."""

from __future__ import annotations

from kubernetes_bodies import Body, ended, job, running, verdict
from kubernetes_statuses import seen

DONE = ended("a", 0, 0, verdict(0, "done"))
DELETED = {"deletionTimestamp": "2026-11-21T10:05:00Z"}
SILENT = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]


def test_is_not_requeued_but_complete_and_names_what_is_stuck() -> None:
    found = seen(job(), DONE, running("b", 1, head=DELETED)).state
    assert found.phase == "running"
    assert found.detail.startswith("the training is complete; pod b: stuck Terminating: ")
    assert found.next[-1] == "kubectl --context here -n default delete pod b --force --grace-period=0"


def test_while_the_machine_is_only_silent() -> None:
    found = seen(job(), DONE, running("b", 1, conditions=SILENT)).state
    assert found.phase == "running"
    assert found.detail.startswith("the training is complete; pod b: its machine gpu-1 does not answer")


def test_while_the_pod_is_recreated() -> None:
    """Its agent finds that the run is over, and leaves with 0."""
    lost: Body = ended("b", 1, 137, head={"creationTimestamp": "2026-11-21T09:00:00Z"})
    found = seen(job(), DONE, lost).state
    assert (found.phase, found.detail.partition(";")[0]) == ("running", "the training is complete")


def test_not_while_the_last_pod_leaves_by_itself() -> None:
    assert seen(job(), DONE, running("b", 1)).state.detail == "on gpu-1"


def test_not_after_a_failure() -> None:
    failed = ended("a", 0, 79, verdict(79, "node 1 was lost"))
    found = seen(job(), failed, running("b", 1, head=DELETED)).state
    assert "complete" not in found.detail
