"""`--kind volcano`: TorchX's own Volcano job, with what it leaves out laid over it.

TorchX renders one task per node. It draws a random name, asks for no security level, no grace and no
limit of /dev/shm, and restarts on every exit code.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.beside import metadata
from launchers._kubernetes.manifest.job import FATAL
from launchers._kubernetes.manifest.names import CONTAINER, object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.patch import merge
from launchers._kubernetes.manifest.pod import patched, unpatched

if TYPE_CHECKING:
    from torchx.specs import AppDef

_INSTANCE = "app.kubernetes.io/instance"


def volcano_job(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """TorchX's resource and our overlay; raises ConfigError where the kubernetes client is missing."""
    return overlaid(torchx_resource(app, options), app, spec, options)


def torchx_resource(app: AppDef, options: Options) -> dict[str, Any]:
    """What TorchX makes of the app, as plain dicts."""
    try:
        import kubernetes  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--kind volcano needs the kubernetes client",
            cause="TorchX renders a Volcano job with its models",
            mend="pip install 'dist-train[kubernetes]', or take another --kind",
        ) from None
    from torchx.schedulers.kubernetes_scheduler import app_to_resource, sanitize_for_serialization

    with warnings.catch_warnings():
        # "Volcano does NOT support retries correctly": of version 1.4, and our policies replace TorchX's.
        warnings.simplefilter("ignore")
        resource = app_to_resource(
            app, queue_of(options), options.service_account, priority_class=options.priority_class
        )
    plain = sanitize_for_serialization(resource)
    assert isinstance(plain, dict)
    return plain


def queue_of(options: Options) -> str:
    """Volcano has a queue of this name from the beginning."""
    return options.queue or "default"


def overlaid(resource: dict[str, Any], app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """The resource with a name that is the same every time, our pod template, gang and exit codes."""
    tasks = [_task(task, app, spec, options, node) for node, task in enumerate(resource["spec"]["tasks"])]
    return {
        **resource,
        "metadata": metadata(spec, options),
        "spec": {
            **resource["spec"],
            "minAvailable": spec.nodes,
            # Volcano gives up when it has counted this many restarts, the last of which it does not make.
            "maxRetry": spec.max_restarts + 1,
            "policies": _policies(),
            **({} if options.ttl_s is None else {"ttlSecondsAfterFinished": options.ttl_s}),
            "tasks": tasks,
        },
    }


def _task(task: dict[str, Any], app: AppDef, spec: JobSpec, options: Options, node: int) -> dict[str, Any]:
    template = task["template"]
    for container in template["spec"]["containers"]:
        container["name"] = CONTAINER  # TorchX calls each by its task
    template["metadata"]["labels"][_INSTANCE] = object_name(spec)
    both = merge(template, unpatched(app, spec, options, node))
    both["spec"]["volumes"] = _mounted(both["spec"])
    # A task's own policies and retries would go before the job's.
    kept = {key: value for key, value in task.items() if key not in ("policies", "maxRetry")}
    return {**kept, "template": patched(both, options)}


def _mounted(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Without TorchX's volumes in whose place ours are mounted."""
    names = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    return [volume for volume in pod["volumes"] if volume["name"] in names]


def _policies() -> list[dict[str, Any]]:
    """The first that matches counts. Volcano knows no restart that costs nothing: 75 and 79 count too."""
    return [
        *({"exitCode": int(code), "action": "TerminateJob"} for code in sorted(FATAL)),
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": "RestartJob"},
    ]
