"""`--kind job`: an Indexed Job whose pods restart together; needs nothing installed in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.errors import ExitCode
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import CONTAINER, object_name
from launchers._kubernetes.manifest.pod import pod_template
from launchers._kubernetes.manifest.support_objects import metadata

if TYPE_CHECKING:
    from torchx.specs import AppDef

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
# Exit codes after which no restart helps, for controllers that know a list of codes alone: an exception of
# the script (the agent has decided, also with --restart-on any), wrong command line, no progress, cancelled,
# wrong configuration.
FATAL = (
    ExitCode.EARLY_EXIT,
    ExitCode.USAGE,
    ExitCode.NON_FINITE,
    ExitCode.NO_PROGRESS,
    ExitCode.CANCELLED,
    ExitCode.CONFIG,
)
# Exit codes of restarts that do not count: saved and stopped, ended because of another node.
_FREE_RESTART = (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
# Exit codes after which another start may help: agents that could not meet or write, and containers that a
# signal ended (128 + its number) or that could not be started (128). Every other code is of the script, and
# the agent has restarted it already as often as it may.
_RESTARTED = (
    ExitCode.UNAVAILABLE,
    ExitCode.INTERNAL,
    ExitCode.CHECKPOINT_WRITE,
    *_FREE_RESTART,
    *range(128, 160),
)


def job(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the Job; its pods reach each other by the headless Service of the same name."""
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
    """Render the spec: one pod per node, all started at once.

    A pod is replaced only when the old one has terminated: two pods of node 0 would write the same run. When
    a node is lost, the agents of the others exit with 79, so the gang restarts together, and only the pod
    that was the root cause counts. (No backoffLimitPerIndex: the others would continue without the lost one.)
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
    """The time limit, at which the pods are ended as by a deletion: they save, and are not restarted."""
    return {} if spec.time_limit_s is None else {"activeDeadlineSeconds": spec.time_limit_s}


def queued(head: dict[str, Any], options: Options) -> dict[str, Any]:
    """Metadata of the job object with Kueue's label, by which it admits the whole job at once."""
    if options.queue is None:
        return head
    return {**head, "labels": {**head["labels"], KUEUE_QUEUE: options.queue}}


def _rules() -> list[dict[str, Any]]:
    """The rules; the first match applies, and what none matches counts towards backoffLimit."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": _codes("NotIn", _RESTARTED)},
        {"action": "Ignore", "onExitCodes": _codes("In", _FREE_RESTART)},
    ]


def _codes(operator: str, values: tuple[int, ...]) -> dict[str, Any]:
    return {
        "containerName": CONTAINER,
        "operator": operator,
        "values": sorted(int(code) for code in values),
    }
