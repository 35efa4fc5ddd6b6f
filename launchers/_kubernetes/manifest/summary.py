"""The plan in a few words, and what a person should know before it runs."""

from __future__ import annotations

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import words
from launchers._kubernetes.manifest.names import object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.size import assumed

_KINDS = {"job": "Job", "jobset": "JobSet", "volcano": "Volcano Job", "trainjob": "TrainJob"}


def summary(spec: JobSpec, options: Options) -> str:
    """One line: how much, as what, where."""
    kind = "GPU" if spec.device == "cuda" else "CPU"
    where = f"{_KINDS[options.kind]} {object_name(spec)} in namespace {options.namespace}"
    return f"{spec.nodes} node(s) x {spec.procs_per_node} {kind} processes on Kubernetes: {where}"


def notes(spec: JobSpec, options: Options) -> tuple[str, ...]:
    """What was assumed, what the cluster must allow first, what will be lost."""
    found = []
    if options.rdma:
        found.append(
            "--rdma yes: the namespace must allow IPC_LOCK (which only root has: --run-as-user 0, or let the "
            f"container runtime lift memlock): kubectl label namespace {options.namespace} "
            "pod-security.kubernetes.io/enforce=privileged"
        )
    if options.claim is None:
        found.append("no run volume: the run ends with its pod, checkpoints too (--run-volume pvc/NAME)")
    if assumption := assumed(spec):
        found.append(f"each node has at most {' and '.join(assumption)}")
    if options.image is not None and not words.is_pinned(options.image):
        found.append(f"the image {options.image} may be another one at each start: give a tag or a digest")
    if options.kind == "jobset" and spec.time_limit_s is not None:
        found.append("the time limit is that of each attempt: a JobSet makes its Job anew")
    return tuple(found)
