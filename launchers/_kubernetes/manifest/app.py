"""The TorchX AppDef of a job, from which manifests are rendered: one role, one replica per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.jobs import JobSpec
from dist_train.jobs.agent_command import agent_argv, agent_environ
from launchers._kubernetes.manifest import pod_paths
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.node_resources import node_resources
from launchers._kubernetes.manifest.option_values import DISK, GPU
from launchers._kubernetes.manifest.plan_check import check_plan
from launchers._kubernetes.manifest.pod_paths import POD_RUN_ROOT

if TYPE_CHECKING:
    from torchx.specs import AppDef, Resource

__all__ = ["POD_RUN_ROOT", "ROLE", "app_of"]
# The task of a Volcano job, a part of its pods' names; TorchX changes names with other characters than
# [a-z0-9].
ROLE = "trainer"
# The user may be missing in the image's /etc/passwd, and the root file system is read-only.
_HOME = {
    "HOME": "/tmp",
    "USER": "dist-train",
    "LOGNAME": "dist-train",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "XDG_CACHE_HOME": "/tmp/cache",
}


def app_of(spec: JobSpec, options: Options) -> AppDef:
    """Make the AppDef of a job; raises ConfigError for what is missing."""
    check_plan(spec, options)
    from torchx.specs import AppDef, RetryPolicy, Role, VolumeMount

    inside = pod_paths.in_pod(spec, options)
    name = object_name(spec)
    entrypoint, *args = agent_argv(inside, options.python)
    environ = agent_environ(inside, "kubernetes", None, pod_paths.rendezvous(spec, options), job=f"{name}.0")
    role = Role(
        name=ROLE,
        image=options.image or "",
        entrypoint=entrypoint,
        args=[_literal(argument) for argument in args],
        env={key: _literal(value) for key, value in {**_HOME, **environ}.items()},
        num_replicas=spec.nodes,
        min_replicas=spec.nodes,
        max_retries=spec.max_restarts,
        retry_policy=RetryPolicy.APPLICATION,
        resource=_resource(spec, options),
        port_map={"rdzv": pod_paths.RDZV_PORT},
        mounts=[] if options.claim is None else [VolumeMount(options.claim[0], POD_RUN_ROOT)],
    )
    return AppDef(name=name, roles=[role], metadata=labels(spec))


def _literal(text: str) -> str:
    """Escape a text for TorchX, which replaces macros such as ${app_id} in arguments and variables."""
    return text.replace("$", "$$")


def _resource(spec: JobSpec, options: Options) -> Resource:
    """Convert: whole devices to TorchX's devices, other amounts to capabilities. memMB: MiB.

    TorchX's `gpu` is nvidia.com/gpu: any other is a device.
    """
    from torchx.specs import Resource

    node = node_resources(spec, options)
    disk = {DISK: node.disk} if node.requests_disk else {}
    return Resource(
        cpu=node.cpus,
        gpu=node.gpus if node.gpu == GPU else 0,
        memMB=node.mem_mib,
        capabilities={**disk, **{k: v for k, v in node.others if not v.isdigit()}},
        devices={
            **({node.gpu: node.gpus} if node.gpus and node.gpu != GPU else {}),
            **{k: int(v) for k, v in node.others if v.isdigit()},
        },
    )
