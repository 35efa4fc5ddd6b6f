"""A queue that will never admit the job: what to launch instead."""

from __future__ import annotations

import pytest
from kubernetes_bodies import job
from kubernetes_statuses import seen

QUEUE = "kueue.x-k8s.io/queue-name"
FLAVORS = "Kueue: couldn't assign flavors to pod set main: "


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            "resource ephemeral-storage unavailable in ClusterQueue (NoMatchingFlavor)",
            "launch it again with --resource ephemeral-storage=none",
        ),
        (
            "resource ephemeral-storage unavailable in ClusterQueue (Pending)",
            "launch it again with --resource ephemeral-storage=none",
        ),
        (
            "resource rdma/ib unavailable in ClusterQueue (NoMatchingFlavor)",
            "the queue has no quota for rdma/ib at all: launch it without, or ask the queue's administrators",
        ),
        (
            "flavor spot doesn't match node affinity (NoMatchingFlavor)",
            "no flavor of the queue fits the pods' --node-selector and --toleration",
        ),
    ],
)
def test_what_the_queue_never_admits_has_a_hint(message: str, hint: str) -> None:
    top = job(spec={"suspend": True}, head={"labels": {QUEUE: "gold"}})
    found = seen(top, notes=(FLAVORS + message,)).state
    assert found.detail == f"suspended in the queue gold; {FLAVORS}{message}; {hint}"


def test_waiting_for_quota_has_none() -> None:
    top = job(spec={"suspend": True}, head={"labels": {QUEUE: "gold"}})
    message = f"{FLAVORS}insufficient unused quota for cpu in flavor default, 2 more needed (Pending)"
    assert seen(top, notes=(message,)).state.detail == f"suspended in the queue gold; {message}"
