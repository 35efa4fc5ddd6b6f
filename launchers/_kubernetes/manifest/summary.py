"""The summary line of a plan, and notes for the person who launches it."""

from __future__ import annotations

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import validators
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import object_name
from launchers._kubernetes.manifest.node_resources import assumed_defaults

_KINDS = {"job": "Job", "jobset": "JobSet", "volcano": "Volcano Job", "trainjob": "TrainJob"}


def summary(spec: JobSpec, options: Options) -> str:
    """One line: nodes, processes, kind, name, namespace."""
    kind = "GPU" if spec.device == "cuda" else "CPU"
    where = f"{_KINDS[options.kind]} {object_name(spec)} in namespace {options.namespace}"
    return f"{spec.nodes} node(s) x {spec.procs_per_node} {kind} processes on Kubernetes: {where}"


def notes(spec: JobSpec, options: Options) -> tuple[str, ...]:
    """Defaults that apply, rights that the namespace needs, data that will be lost."""
    found = []
    if options.rdma:
        found.append(
            "--rdma yes: the namespace must allow IPC_LOCK (which only root has: --run-as-user 0, or let the "
            f"container runtime lift memlock): kubectl label namespace {options.namespace} "
            "pod-security.kubernetes.io/enforce=privileged"
        )
    if options.claim is None:
        found.append("no run volume: the run ends with its pod, checkpoints too (--run-volume pvc/NAME)")
    if defaults := assumed_defaults(spec):
        found.append(f"each node has at most {' and '.join(defaults)}")
    if options.image is not None and not validators.is_pinned(options.image):
        found.append(f"the image {options.image} may be another one at each start: give a tag or a digest")
    if options.kind == "jobset" and spec.time_limit_s is not None:
        found.append("the time limit is that of each attempt: a JobSet recreates its Job")
    return tuple(found)
