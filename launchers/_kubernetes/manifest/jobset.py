"""`--kind jobset`: a JobSet of one Job, recreated as a whole after the old one has terminated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.indexed_job import job_spec, queued, time_limit
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.pod import pod_template
from launchers._kubernetes.manifest.support_objects import metadata

if TYPE_CHECKING:
    from torchx.specs import AppDef

# Part of the pods' names: NAME-node-0-INDEX.
_REPLICATED_JOB = "node"


def child_job(name: str) -> str:
    """The name of the one Job of a JobSet."""
    return f"{name}-{_REPLICATED_JOB}-0"


def jobset(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the JobSet; its controller creates the headless Service."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": queued(metadata(spec, options), options),
        "spec": jobset_spec(app, spec, options, time_limit(spec)),
    }


def jobset_spec(
    app: AppDef,
    spec: JobSpec,
    options: Options,
    limit: dict[str, Any],
    step_labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Render the spec of a JobSet and of a TrainingRuntime; `limit`: the time limit of each attempt's Job."""
    child = {**job_spec(pod_template(app, spec, options), spec, backoff_limit=0), **limit}
    return {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
            "subdomain": object_name(spec),
        },
        "failurePolicy": {
            "maxRestarts": spec.max_restarts,
            # Pods of two attempts at the same time would have the same DNS names.
            "restartStrategy": "BlockingRecreate",
            "rules": _rules(limited=bool(limit)),
        },
        "replicatedJobs": [
            {
                "name": _REPLICATED_JOB,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": {**labels(spec), **(step_labels or {})}},
                    "spec": child,
                },
            }
        ],
        **({} if options.ttl_s is None else {"ttlSecondsAfterFinished": options.ttl_s}),
    }


def _rules(limited: bool) -> list[dict[str, Any]]:
    """The rules; any other failure of the Job restarts the set, and counts."""
    reasons = {"fatalExitCode": "PodFailurePolicy", **({"timeLimit": "DeadlineExceeded"} if limited else {})}
    return [
        {"name": name, "action": "FailJobSet", "onJobFailureReasons": [reason]}
        for name, reason in reasons.items()
    ]
