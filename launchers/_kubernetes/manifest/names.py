"""Names and labels of a run's objects: valid for every run name, and deterministic."""

from __future__ import annotations

import hashlib
import re

from dist_train.jobs import JobSpec

RUN_LABEL = "dist-train/run-id"
NAME_LABEL = "dist-train/name"
# The container that runs the agent, one per node. Kubeflow's Trainer requires this name, so every kind
# has it, and the same --pod-patch works for all.
CONTAINER = "node"
# Pod names are NAME-trainer-0 or NAME-node-0-0-xxxxx: with 40 both fit a DNS label (63).
_NAME_LIMIT = 40
_LABEL_LIMIT = 63
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def object_name(spec: JobSpec) -> str:
    """The run's name as a DNS label; a changed one ends with a hash of the original."""
    text = re.sub(r"[^a-z0-9-]+", "-", spec.name.lower()).strip("-") or "run"
    if not text[0].isalpha():
        text = f"run-{text}"  # a Service's name begins with a letter
    if text == spec.name and len(text) <= _NAME_LIMIT:
        return text
    return _hashed(text, spec.name, _NAME_LIMIT)


def labels(spec: JobSpec) -> dict[str, str]:
    """The labels of every object and pod of the run; by RUN_LABEL they are found and deleted."""
    return {
        RUN_LABEL: run_label(spec.run_id),
        NAME_LABEL: _label_value(spec.name),
        "app.kubernetes.io/name": "dist-train",
        "app.kubernetes.io/managed-by": "dist-train",
    }


def run_label(run_id: str) -> str:
    """A run id as the value of RUN_LABEL."""
    return _label_value(run_id)


def _label_value(text: str) -> str:
    if _LABEL_VALUE.fullmatch(text):
        return text
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "run"
    return _hashed(safe, text, _LABEL_LIMIT)


def _hashed(text: str, original: str, limit: int) -> str:
    tail = hashlib.sha256(original.encode()).hexdigest()[:6]
    return f"{text[: limit - 7].rstrip('-._')}-{tail}"
