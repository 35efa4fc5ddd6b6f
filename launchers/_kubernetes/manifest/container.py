"""The container that runs the agent: command, environment, resources, mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train import env
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import CONTAINER
from launchers._kubernetes.manifest.node_resources import node_resources
from launchers._kubernetes.manifest.option_values import GPU
from launchers._kubernetes.manifest.plan_check import secrets
from launchers._kubernetes.manifest.pod_paths import CONFIG_FOLDER, POD_RUN_ROOT
from launchers._kubernetes.manifest.quantities import memory

if TYPE_CHECKING:
    from torchx.specs import Role

# The pod field in which each kind's controller writes the submission (the uid of the job object).
_SUBMISSION = {
    "job": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "jobset": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
    "trainjob": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
    "volcano": "metadata.annotations['scheduling.k8s.io/group-name']",
}


def container(role: Role, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the agent as PID 1, in the exec form: without a shell, so that it receives the signals."""
    limits = _limits(role)
    requests = {**limits, **dict(node_resources(spec, options).reserved)}
    return {
        "name": CONTAINER,
        "image": role.image,
        "command": [_unexpanded(part) for part in (role.entrypoint, *role.args)],
        "workingDir": options.workdir,
        "env": _env(role, spec, options),
        "ports": [{"name": name, "containerPort": port} for name, port in role.port_map.items()],
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if options.rdma else {})},
        },
        # Where the agent was killed before it wrote its verdict, the message is its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(role, spec, options),
    }


def _env(role: Role, spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    fields = {
        env.POD_UID: "metadata.uid",
        env.POD_NAME: "metadata.name",
        env.POD_NODE: "spec.nodeName",
        env.SUBMISSION: _SUBMISSION[options.kind],
    }
    return [
        *({"name": name, "value": _unexpanded(value)} for name, value in role.env.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in secrets(spec, options).items()
        ),
    ]


def _unexpanded(text: str) -> str:
    """Escape a text for Kubernetes, which expands $(NAME) in commands and values, and $$ to $."""
    return text.replace("$", "$$")


def _limits(role: Role) -> dict[str, str]:
    """The limits; requested too, since quotas need both."""
    resource = role.resource
    return {
        "cpu": str(resource.cpu),
        "memory": memory(resource.memMB),
        **{name: str(amount) for name, amount in resource.capabilities.items()},
        **({GPU: str(resource.gpu)} if resource.gpu else {}),
        **{name: str(count) for name, count in resource.devices.items()},
    }


def _mounts(role: Role, spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    sub = options.claim[1] if options.claim else None
    runs = [
        {
            "name": "runs",
            "mountPath": mount.dst_path,
            **({"subPath": sub} if sub else {}),
        }
        for mount in role.mounts
    ] or [{"name": "runs", "mountPath": POD_RUN_ROOT}]
    config = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
    return [
        *runs,
        {"name": "dshm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        *([config] if spec.config_yaml is not None else []),
    ]
