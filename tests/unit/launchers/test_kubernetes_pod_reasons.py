"""Reasons of pods that were restarted, are being ended, have lost their machine or their job."""

from __future__ import annotations

from kubernetes_bodies import ended, job, running, verdict
from kubernetes_statuses import FAILED, seen, waiting


def test_the_reason_of_the_previous_end() -> None:
    """The root cause of the previous start, not a secondary failure, and not that of an older start."""
    old, last = ({"head": {"creationTimestamp": f"2026-11-21T0{hour}:00:00Z"}} for hour in (8, 9))
    pods = [
        ended("a1", 0, 9, finished="2026-11-21T08:30:00Z", **old),
        ended("a2", 0, 79, verdict(79, "node 1 was lost"), finished="2026-11-21T09:30:00Z", **last),
        ended("b2", 1, 137, reason="OOMKilled", finished="2026-11-21T09:30:00Z", **last),
    ]
    starting = seen(job(), *pods, waiting("a3", "ContainerCreating"), running("b3", 1)).state
    assert starting.detail == (
        "pod a3: its volumes and containers are being made; "
        "recreated after pod b2: out of memory (OOMKilled): ask for more with --mem; exit code 137"
    )
    at_work = seen(job(), *pods, running("a3", 0), running("b3", 1)).state
    assert at_work.detail == "on gpu-1"
    assert at_work.nodes == (
        "node 0  a3  Running on gpu-1, restarts 2; before it a2: exit code 79; node 1 was lost",
        "node 1  b3  Running on gpu-1, restarts 2; before it b2: out of memory (OOMKilled): "
        "ask for more with --mem; exit code 137",
    )


def test_a_drained_node_was_restarted_as_often_as_the_others() -> None:
    """Its pod was deleted; the pods of the others have ended, and stay."""
    old = {"head": {"creationTimestamp": "2026-11-21T09:00:00Z"}, "finished": "2026-11-21T09:30:00Z"}
    saved = ended("a1", 0, 75, verdict(75, "saved and stopped"), **old)
    lines = seen(job(), saved, running("a2", 0), running("b2", 1)).state.nodes
    assert lines[0].startswith("node 0  a2  Running on gpu-1, restarts 1; before it a1")
    assert lines[1] == "node 1  b2  Running on gpu-1, restarts 1"


def test_pods_without_their_job_are_running_until_they_end() -> None:
    """kubectl delete job --cascade=orphan."""
    found = seen(None, running("a", 0), ended("b", 1)).state
    assert (found.phase, found.detail) == (
        "running",
        "its Job was deleted, and a, b still there: none will be recreated",
    )
    done = seen(None, ended("a", 0), ended("b", 1)).state
    assert (done.phase, done.exit_code) == ("done", 0)
    failed = seen(None, ended("a", 0, 41, verdict(41, "not restarted")), ended("b", 1)).state
    assert (failed.phase, failed.exit_code) == ("failed", 41)
    assert failed.detail.startswith("its Job is gone; ")


def test_an_unresponsive_machine() -> None:
    """A pod without probes is ready until its machine stops responding."""
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    found = seen(job(), running("a", 0, conditions=conditions), running("b", 1)).state
    assert found.detail.startswith("pod a: its machine gpu-1 does not answer")
    assert found.next == ("kubectl --context here -n default get node gpu-1",)
    soon = {"deletionTimestamp": "2026-11-21T10:10:20Z"}
    leaving = running("a", 0, conditions=conditions, head=soon)
    assert "is to be ended, and its machine gpu-1 does not answer" in seen(job(), leaving).state.nodes[0]


def test_why_a_pod_is_being_ended() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    soon = {"deletionTimestamp": "2026-11-21T10:10:20Z"}
    drained = running("a", 0, head=soon, conditions=[condition])
    said = "is being ended (evicted (a drain, or an autoscaler)): it saves and stops"
    assert said in seen(job(), drained, running("b", 1)).state.detail


def test_out_of_memory_names_the_limit() -> None:
    killed = ended("b", 1, 137, reason="OOMKilled")
    killed["spec"]["containers"][0]["resources"] = {"limits": {"memory": "2Gi"}}
    found = seen(job(condition=FAILED), ended("a", 0, 79, verdict(79, "node 1 was lost")), killed).state
    assert "out of memory at its limit of 2Gi (OOMKilled): ask for more with --mem" in found.detail
