"""`--kind jobset`: a JobSet of one Job, which is made anew as a whole, after the old one has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.beside import metadata
from launchers._kubernetes.manifest.job import job_spec, queued, time_limit
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.pod import pod_template

if TYPE_CHECKING:
    from torchx.specs import AppDef

# Part of the pods' names: NAME-node-0-INDEX.
_REPLICATED_JOB = "node"


def child_job(name: str) -> str:
    """What the JobSet of this name calls its one Job."""
    return f"{name}-{_REPLICATED_JOB}-0"


def jobset(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """The JobSet; its controller makes the headless service."""
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
    """What a JobSet and a TrainingRuntime both hold; `limit` is that of each attempt's Job."""
    child = {**job_spec(pod_template(app, spec, options), spec, backoff_limit=0), **limit}
    return {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
            "subdomain": object_name(spec),
        },
        "failurePolicy": {
            "maxRestarts": spec.max_restarts,
            # Two generations of pods at once would have the same names in DNS.
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
    """Any other failure of the Job restarts the set, and counts."""
    reasons = {"fatalExitCode": "PodFailurePolicy", **({"timeLimit": "DeadlineExceeded"} if limited else {})}
    return [
        {"name": name, "action": "FailJobSet", "onJobFailureReasons": [reason]}
        for name, reason in reasons.items()
    ]
