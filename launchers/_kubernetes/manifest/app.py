"""The job as a TorchX app: one role, one replica per node. Manifests are rendered from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.jobs import JobSpec
from dist_train.jobs.agent_command import agent_argv, agent_environ
from launchers._kubernetes.manifest import places
from launchers._kubernetes.manifest.check import check
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.places import POD_RUN_ROOT
from launchers._kubernetes.manifest.size import DISK, node_size

if TYPE_CHECKING:
    from torchx.specs import AppDef, Resource

__all__ = ["POD_RUN_ROOT", "ROLE", "app_of"]
# Pods of a Volcano job are called by it; TorchX strips or breaks names with anything but [a-z0-9].
ROLE = "trainer"
# An image's user need not be in its /etc/passwd, and its root file system is read-only.
_HOME = {
    "HOME": "/tmp",
    "USER": "dist-train",
    "LOGNAME": "dist-train",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "XDG_CACHE_HOME": "/tmp/cache",
}


def app_of(spec: JobSpec, options: Options) -> AppDef:
    """The TorchX app of a job; raises ConfigError for what is missing."""
    check(spec, options)
    from torchx.specs import AppDef, RetryPolicy, Role, VolumeMount

    inside = places.in_pod(spec, options)
    name = object_name(spec)
    entrypoint, *args = agent_argv(inside, options.python)
    environ = agent_environ(inside, "kubernetes", None, places.rendezvous(spec, options), job=f"{name}.0")
    role = Role(
        name=ROLE,
        image=options.image or "",
        entrypoint=entrypoint,
        args=[_literal(word) for word in args],
        env={key: _literal(value) for key, value in {**_HOME, **environ}.items()},
        num_replicas=spec.nodes,
        min_replicas=spec.nodes,
        max_retries=spec.max_restarts,
        retry_policy=RetryPolicy.APPLICATION,
        resource=_resource(spec, options),
        port_map={"rdzv": places.RDZV_PORT},
        mounts=[] if options.claim is None else [VolumeMount(options.claim[0], POD_RUN_ROOT)],
    )
    return AppDef(name=name, roles=[role], metadata=labels(spec))


def _literal(text: str) -> str:
    """TorchX replaces ${app_id} and the like in arguments and variables; ours have no macros."""
    return text.replace("$", "$$")


def _resource(spec: JobSpec, options: Options) -> Resource:
    """Whole devices as TorchX's devices; amounts, for which it has no field, as capabilities. memMB: MiB."""
    from torchx.specs import Resource

    size = node_size(spec, options)
    return Resource(
        cpu=size.cpus,
        gpu=size.gpus,
        memMB=size.mem_mib,
        capabilities={DISK: size.disk, **{k: v for k, v in size.others if not v.isdigit()}},
        devices={k: int(v) for k, v in size.others if v.isdigit()},
    )
