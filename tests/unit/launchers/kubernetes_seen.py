"""The standing of one job, from objects as the API server has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kubernetes_bodies import Body, pod

from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import read_pod
from launchers._kubernetes.state.sight import Sight
from launchers._kubernetes.state.standing import Standing, standing
from launchers._kubernetes.state.top import read_top

DIGITS = Job("job", "default", "digits", "here")
FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded", "message": "Job has reached the limit"}


def seen(top: Body | None, *pods: Body, notes: tuple[str, ...] = (), gone: tuple[Body, ...] = ()) -> Standing:
    """The standing at ten past ten; `gone` are deleted pods that a watch remembers."""
    sight = Sight(
        None if top is None else read_top("job", top),
        tuple(read_pod(body) for body in pods),
        notes,
        datetime(2026, 11, 21, 10, 10, tzinfo=UTC),
    )
    found = standing(DIGITS, sight, [read_pod(body) for body in gone])
    assert found is not None
    assert Standing.from_text(found.to_text()) == found, "nothing is lost on the way through TorchX"
    return found


def waiting(name: str, reason: str, message: str = "", node: int = 0, **more: Any) -> Body:
    return pod(name, node, state={"waiting": {"reason": reason, "message": message}}, host="gpu-1", **more)
