"""`--kind job`: an Indexed Job whose pods restart together, with nothing installed in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.errors import ExitCode
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.beside import metadata
from launchers._kubernetes.manifest.names import CONTAINER, object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.pod import pod_template

if TYPE_CHECKING:
    from torchx.specs import AppDef

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
# No restart helps: the command line, no progress, cancelled, found wrong.
FATAL = (ExitCode.USAGE, ExitCode.NO_PROGRESS, ExitCode.CANCELLED, ExitCode.CONFIG)
# Start me again, and it costs nothing: saved and stopped, ended because of another node.
_AGAIN = (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)


def job(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """The Job; its pods meet by the headless Service of the same name."""
    template = pod_template(app, spec, options)
    template["spec"] = {"subdomain": object_name(spec), **template["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": queued(metadata(spec, options), options),
        "spec": {
            **job_spec(template, spec, backoff_limit=spec.max_restarts),
            **time_limit(spec),
            **({} if options.ttl_s is None else {"ttlSecondsAfterFinished": options.ttl_s}),
        },
    }


def job_spec(template: dict[str, Any], spec: JobSpec, backoff_limit: int) -> dict[str, Any]:
    """One pod per node, all at once.

    A pod is replaced only when the old one is really gone: two node 0 would write one run. A lost node
    makes the agents of the others leave with 79, so the gang comes back together, and only the guilty
    pod counts. (No backoffLimitPerIndex: it would let the others go on without it.)
    """
    return {
        "completionMode": "Indexed",
        "completions": spec.nodes,
        "parallelism": spec.nodes,
        "backoffLimit": backoff_limit,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _rules()},
        "template": template,
    }


def time_limit(spec: JobSpec) -> dict[str, Any]:
    """The pods are then ended as by a deletion: they save, and are not started again."""
    return {} if spec.time_limit_s is None else {"activeDeadlineSeconds": spec.time_limit_s}


def queued(head: dict[str, Any], options: Options) -> dict[str, Any]:
    """Metadata of the top object, by whose label Kueue admits the whole job at once."""
    if options.queue is None:
        return head
    return {**head, "labels": {**head["labels"], KUEUE_QUEUE: options.queue}}


def _rules() -> list[dict[str, Any]]:
    """The first that matches counts; what none matches counts towards backoffLimit."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": _codes(FATAL)},
        {"action": "Ignore", "onExitCodes": _codes(_AGAIN)},
    ]


def _codes(values: tuple[ExitCode, ...]) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": sorted(int(code) for code in values)}
