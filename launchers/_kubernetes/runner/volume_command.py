"""Run a short command beside a job: a pod of the same image with the same run volume, and its output.

No right is needed but those of a launch: nothing is executed in the job's own pods.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dist_train.errors import UnavailableError
from dist_train.jobs import JobSpec
from launchers._kubernetes.api.api_errors import NoLogYet, ObjectNotFound
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import JOB, POD
from launchers._kubernetes.manifest.app import app_of
from launchers._kubernetes.manifest.indexed_job import job_spec, queued
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import RUN_LABEL, object_name, run_label
from launchers._kubernetes.manifest.pod import pod_template
from launchers._kubernetes.manifest.support_objects import metadata
from launchers._kubernetes.runner.pod_logs import log_of_pod
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import read_pod

_POLL_S = 0.5
# Where the command that has asked is killed, the cluster ends the pod and removes it.
_DEADLINE_S, _TTL_S = 300, 60


def run_beside(
    cluster: Cluster, job: Job, spec: JobSpec, options: Options, words: Sequence[str], timeout_s: float
) -> str:
    """The output of `python WORDS` in such a pod; raises UnavailableError where it does not end in time."""
    if options.claim is None:
        raise UnavailableError(
            f"the run directory of {spec.name} is in its pod alone",
            cause="it was launched without a claim as its run volume",
            hint="--run-volume pvc/NAME",
        )
    beside = beside_spec(spec)
    name = object_name(beside)
    cluster.create(manifest(beside, options, words))
    try:
        _await_end(cluster, job, name, timeout_s)
        pods = cluster.find(POD, f"{RUN_LABEL}={run_label(beside.run_id)}").items
        return "\n".join(line for body in pods for line in log_of_pod(cluster, read_pod(body)))
    except (NoLogYet, ObjectNotFound) as error:
        raise UnavailableError(f"the pod of {name} has no output: {error.what}") from error
    finally:
        cluster.delete(JOB, name)


def beside_spec(spec: JobSpec) -> JobSpec:
    """A job of one process on CPU, whose name and id are its own: its pod does not count as the run's."""
    name = f"{spec.name[:24]}-ask-{secrets.token_hex(3)}"
    small: dict[str, Any] = {"nodes": 1, "procs_per_node": 1, "device": "cpu", "resources": (), "secrets": ()}
    return replace(spec, name=name, run_id=name, config_yaml=None, env=(), gpus=(), **small)


def manifest(beside: JobSpec, options: Options, words: Sequence[str]) -> Mapping[str, Any]:
    """A Job whose pod is like the run's, --pod-patch included, with this command in the agent's place."""
    changed: dict[str, Any] = {"kind": "job", "resource": (), "secret_ref": (), "rdma": False, "shm": None}
    if options.kind == "volcano":
        changed["queue"] = None  # a queue of Volcano's
    plain = options.model_copy(update=changed)
    template = pod_template(app_of(beside, plain), beside, plain)
    container = template["spec"]["containers"][0]
    container["command"] = [plain.python, *words]
    container["env"] = [{"name": "HOME", "value": "/tmp"}]
    container.pop("ports", None)
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": queued(metadata(beside, plain), plain),
        "spec": {
            **job_spec(template, beside, backoff_limit=0),
            "activeDeadlineSeconds": _DEADLINE_S,
            "ttlSecondsAfterFinished": _TTL_S,
        },
    }


def _await_end(cluster: Cluster, job: Job, name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = (cluster.get(JOB, name) or {}).get("status") or {}
        if status.get("succeeded") or status.get("failed"):
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the pod of {name} has not ended within {timeout_s:.0f} s",
                cause="it may wait for a node, for its image, or for a volume that one node alone may mount",
                hint=job.kubectl(f"get events --field-selector involvedObject.kind=Pod | grep {name}"),
            )
        time.sleep(_POLL_S)
