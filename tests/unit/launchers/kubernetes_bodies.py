"""Objects as a cluster's controllers and kubelets leave them: jobs, pods, agents' verdicts, events."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]
NOW = "2026-11-21T10:00:00Z"


def pod(name: str, node: int = 0, run: str = "digits-1f", **status: Any) -> Body:
    """A pod of an Indexed Job; `state` and `image_id` are its container's, `head` goes into its metadata."""
    state, head = status.pop("state", None), status.pop("head", {})
    host, image_id = status.pop("host", ""), status.pop("image_id", "")
    labels = {"dist-train/run-id": run, "batch.kubernetes.io/job-completion-index": str(node)}
    container = {"name": "node", "image": "train:1", "env": [{"name": "DIST_TRAIN_RUN_ID", "value": run}]}
    statuses = (
        [] if state is None else [{"name": "node", "restartCount": 0, "imageID": image_id, "state": state}]
    )
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": NOW, "uid": f"uid-{name}", **head},
        "spec": {"containers": [container], **({"nodeName": host} if host else {})},
        "status": {"phase": "Pending", "containerStatuses": statuses, **status},
    }


def running(name: str, node: int = 0, host: str = "gpu-1", **more: Any) -> Body:
    """A pod whose agent runs."""
    return pod(name, node, phase="Running", host=host, state={"running": {"startedAt": NOW}}, **more)


def ended(name: str, node: int = 0, code: int = 0, message: Body | str | None = None, **more: Any) -> Body:
    """A pod whose agent has ended; `message`: its termination message."""
    text = json.dumps(message) if isinstance(message, dict) else message or ""
    terminated = {"exitCode": code, "reason": more.pop("reason", "Completed" if code == 0 else "Error")}
    terminated |= {"message": text, "finishedAt": more.pop("finished", "2026-11-21T10:05:00Z")}
    phase = "Succeeded" if code == 0 else "Failed"
    status = {"phase": phase, **more.pop("status", {})}
    return pod(name, node, host="gpu-1", state={"terminated": terminated}, **status, **more)


def verdict(code: int, why: str = "", **more: Any) -> Body:
    """What an agent writes into /dev/termination-log."""
    head = {"schema_version": 1, "run_id": "digits-1f", "node": 0, "attempt": 0, "code": code, "why": why}
    return {**head, "step": None, "failure": None, **more}


def job(name: str = "digits", run: str = "digits-1f", condition: Body | None = None, **more: Any) -> Body:
    """A Job of two pods as its controller keeps it."""
    conditions = [] if condition is None else [{"status": "True", **condition}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"dist-train/run-id": run}, **more.pop("head", {})},
        "spec": {"parallelism": 2, "completions": 2, **more.pop("spec", {})},
        "status": {"conditions": conditions, **more},
    }


def event(
    about: Body, reason: str, message: str, at: str = "2026-11-21T10:01:00Z", kind: str = "Job"
) -> Body:
    """A warning of a controller."""
    involved = {"kind": kind, "name": about["metadata"]["name"], "uid": about["metadata"].get("uid")}
    head = {"name": f"{involved['name']}.{abs(hash((reason, message))):x}"}
    return {
        "metadata": head,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        "involvedObject": involved,
    }
