"""`--kind volcano`: TorchX's Volcano job, overlaid with what it lacks.

TorchX renders one task per node, each with a whole pod template (at 1,000 nodes 3 MB, which etcd refuses),
with a random name, without a security level, a grace period and a limit of /dev/shm, and it restarts on every
exit code. Ours has one task with a replica per node; the agents read their number from VC_TASK_INDEX.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.app import ROLE
from launchers._kubernetes.manifest.indexed_job import FATAL
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import CONTAINER, object_name
from launchers._kubernetes.manifest.pod import base_template, with_pod_patch
from launchers._kubernetes.manifest.pod_patch import merge
from launchers._kubernetes.manifest.support_objects import metadata

if TYPE_CHECKING:
    from torchx.specs import AppDef

_INSTANCE = "app.kubernetes.io/instance"
_REPLICA = "torchx.pytorch.org/replica-id"
# MAX_ARG_STRLEN, of one argument or variable.
_VARIABLE_BYTES = 128 * 1024


def volcano_job(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render TorchX's resource with our overlay; raises ConfigError without the kubernetes client."""
    return overlay(torchx_resource(app, options), app, spec, options)


def torchx_resource(app: AppDef, options: Options) -> dict[str, Any]:
    """Render the app by TorchX, as plain dicts: the task of one node."""
    try:
        import kubernetes  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--kind volcano needs the kubernetes client",
            cause="TorchX renders a Volcano job with its models",
            hint="pip install 'dist-train[kubernetes]', or take another --kind",
        ) from None
    from torchx.schedulers.kubernetes_scheduler import app_to_resource, sanitize_for_serialization

    one_node = replace(app, roles=[replace(app.roles[0], num_replicas=1, min_replicas=1)])
    with warnings.catch_warnings():
        # "Volcano does NOT support retries correctly" is about 1.4, and our policies replace TorchX's.
        warnings.simplefilter("ignore")
        resource = app_to_resource(
            one_node, queue_of(options), options.service_account, priority_class=options.priority_class
        )
    plain = sanitize_for_serialization(resource)
    assert isinstance(plain, dict)
    return plain


def queue_of(options: Options) -> str:
    """The queue; every Volcano has one with the name `default`."""
    return options.queue or "default"


def overlay(resource: dict[str, Any], app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Overlay a deterministic name, our pod template, gang size and exit code policies."""
    (task,) = resource["spec"]["tasks"]
    _refuse_too_many_names(spec)
    return {
        **resource,
        "metadata": metadata(spec, options),
        "spec": {
            **resource["spec"],
            "minAvailable": spec.nodes,
            # Volcano fails the job at this many restarts, and does not make the last of them.
            "maxRetry": spec.max_restarts + 1,
            "policies": _policies(),
            **({} if options.ttl_s is None else {"ttlSecondsAfterFinished": options.ttl_s}),
            "tasks": [_task(task, app, spec, options)],
        },
    }


def _refuse_too_many_names(spec: JobSpec) -> None:
    """Volcano's plugin svc gives each pod the names of all in one variable, which Linux limits."""
    name = object_name(spec)
    size = sum(len(f"{name}-{ROLE}-{node}.{name},") for node in range(spec.nodes))
    if size >= _VARIABLE_BYTES:
        raise ConfigError(
            f"the names of {spec.nodes} pods have {size} bytes; Volcano gives them to each in one variable",
            cause=f"Linux starts no program with a variable of {_VARIABLE_BYTES} bytes or more",
            hint="--kind jobset or job, or a shorter --name",
        )


def _task(task: dict[str, Any], app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    template = task["template"]
    for container in template["spec"]["containers"]:
        container["name"] = CONTAINER  # TorchX uses the task's name
    template["metadata"]["labels"][_INSTANCE] = object_name(spec)
    del template["metadata"]["labels"][_REPLICA]  # the same in all pods
    both = merge(template, base_template(app, spec, options))
    both["spec"]["volumes"] = _mounted(both["spec"])
    # A task's own policies and retries would take precedence over the job's.
    kept = {key: value for key, value in task.items() if key not in ("policies", "maxRetry")}
    size = {"name": ROLE, "replicas": spec.nodes, "minAvailable": spec.nodes}
    return {**kept, **size, "template": with_pod_patch(both, options)}


def _mounted(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The volumes that are mounted: TorchX's are replaced by ours of the same mount paths."""
    names = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    return [volume for volume in pod["volumes"] if volume["name"] in names]


def _policies() -> list[dict[str, Any]]:
    """The policies; the first match applies. Every restart counts in Volcano, also after 75 and 79."""
    return [
        *({"exitCode": int(code), "action": "TerminateJob"} for code in sorted(FATAL)),
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": "RestartJob"},
    ]
