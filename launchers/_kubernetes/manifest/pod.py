"""The pod template of every kind: the agent as PID 1, at the restricted Pod Security level."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import validators
from launchers._kubernetes.manifest.container import container
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import labels
from launchers._kubernetes.manifest.node_resources import gpu_taint, node_resources
from launchers._kubernetes.manifest.pod_patch import merge
from launchers._kubernetes.manifest.quantities import memory

if TYPE_CHECKING:
    from torchx.specs import AppDef, Role

# Time after the save: exit of the ranks, barrier, last records.
_EXIT_MARGIN_S = 30
# A pod on a lost node is replaced after this time, not after Kubernetes' 300 s.
_LOST_NODE_S = 30
_ISTIO = "sidecar.istio.io/inject"


def pod_template(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the one template of all nodes, for controllers that set each pod's index, with --pod-patch."""
    return with_pod_patch(base_template(app, spec, options), options)


def with_pod_patch(template: dict[str, Any], options: Options) -> dict[str, Any]:
    """Apply --pod-patch, as the last step."""
    return merge(template, options.pod_patch) if options.pod_patch else template


def base_template(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the template before --pod-patch; the controllers set each pod's index."""
    role = _without_macros(app)
    metadata = {
        "labels": {**labels(spec), _ISTIO: "false"},
        "annotations": {
            _ISTIO: "false",
            "linkerd.io/inject": "disabled",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            **validators.pairs(options.annotation),
        },
    }
    return {"metadata": metadata, "spec": _spec(role, app, spec, options)}


def _without_macros(app: AppDef) -> Role:
    """Replace TorchX's macros in the role, as TorchX's schedulers do."""
    from torchx.specs import macros

    return macros.Values(img_root="", app_id=app.name, replica_id="", rank0_env="").apply(app.roles[0])


def _spec(role: Role, app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": ceil(spec.grace_s) + _EXIT_MARGIN_S,
        # A Service with the name of one of our variables would overwrite it; no rank needs the API.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"priorityClassName": options.priority_class} if options.priority_class else {}),
        **({"imagePullSecrets": [{"name": options.image_pull_secret}]} if options.image_pull_secret else {}),
        **({"nodeSelector": validators.pairs(options.node_selector)} if options.node_selector else {}),
        "tolerations": _tolerations(spec, options),
        "securityContext": _pod_security(options),
        "containers": [container(role, spec, options)],
        "volumes": _volumes(role, app, spec, options),
    }


def _tolerations(spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    lost_node = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_NODE_S,
        }
        for taint in ("not-ready", "unreachable")
    ]
    taint = {"key": gpu_taint(options.gpu_resource), "operator": "Exists"}
    gpu = [taint] if spec.device == "cuda" else []
    return [*gpu, *lost_node, *(validators.toleration(text) for text in options.toleration)]


def _pod_security(options: Options) -> dict[str, Any]:
    """The security context. No fixed user: OpenShift assigns one, elsewhere the image has a numeric one."""
    return {
        "runAsNonRoot": options.run_as_user != 0,
        **({} if options.run_as_user is None else {"runAsUser": options.run_as_user}),
        **(
            {}
            if options.fs_group is None
            else {"fsGroup": options.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
        ),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _volumes(role: Role, app: AppDef, spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    size = node_resources(spec, options)
    runs: list[dict[str, Any]] = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": mount.src}} for mount in role.mounts
    ] or [{"name": "runs", "emptyDir": {"sizeLimit": size.disk}}]
    shm = {"medium": "Memory", "sizeLimit": memory(size.shm_mib)}
    config = {"name": "config", "configMap": {"name": f"{app.name}-config"}}
    return [
        *runs,
        {"name": "dshm", "emptyDir": shm},
        {"name": "tmp", "emptyDir": {"sizeLimit": size.disk}},
        *([config] if spec.config_yaml is not None else []),
    ]
