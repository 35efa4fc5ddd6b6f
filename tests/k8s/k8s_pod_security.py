"""The restricted Pod Security Standard, enforced on pods and told to whoever creates a Job.

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
https://kubernetes.io/docs/concepts/security/pod-security-admission/ : `enforce` is asked of pods alone, a
Job's creator is only warned (`warn`), so that the Job stands there with no pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k8s_objects import JOBS, NAMESPACES, PODS, Manifest, Resource
from k8s_status import forbidden
from k8s_store import Store

LABEL = "pod-security.kubernetes.io/"
_KEPT = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral")
_VOLUMES = frozenset({*_KEPT, "persistentVolumeClaim", "projected", "secret"})


@dataclass(frozen=True)
class PodSecurity:
    """An admission plug-in: reads the labels of the namespace."""

    store: Store

    def __call__(self, resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        """Refuse a pod, or warn of a Job's."""
        if resource not in (PODS, JOBS):
            return
        place = self.store.get(NAMESPACES, "", obj["metadata"]["namespace"])
        labels = place["metadata"].get("labels") or {}
        spec = obj["spec"] if resource == PODS else obj["spec"]["template"]["spec"]
        faults = ", ".join(faults_of(spec))
        if faults and resource == PODS and labels.get(f"{LABEL}enforce") == "restricted":
            why = f'violates PodSecurity "restricted:latest": {faults}'
            raise forbidden(PODS, obj["metadata"]["name"], why)
        if faults and labels.get(f"{LABEL}warn") == "restricted":
            warn(f'would violate PodSecurity "restricted:latest": {faults}'.replace('"', '\\"'))


def faults_of(spec: Manifest) -> Iterator[str]:
    """What in a pod's spec is not restricted, in the server's words."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or []:
        kinds = set(volume) - {"name"} or {"emptyDir"}
        if not kinds <= _VOLUMES:
            yield f'restricted volume types (volume "{volume["name"]}" uses {", ".join(sorted(kinds))})'
    pod = spec.get("securityContext") or {}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        yield from _container_faults(container["name"], pod, container.get("securityContext") or {})


def _container_faults(name: str, pod: Manifest, own: Manifest) -> Iterator[str]:
    both = {**pod, **own}
    capabilities = own.get("capabilities") or {}
    if own.get("privileged"):
        yield f'privileged (container "{name}" must not set securityContext.privileged=true)'
    if own.get("allowPrivilegeEscalation") is not False:
        yield (
            f'allowPrivilegeEscalation != false (container "{name}" must set '
            "securityContext.allowPrivilegeEscalation=false)"
        )
    added = sorted(set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"})
    if "ALL" not in (capabilities.get("drop") or []) or added:
        more = f"; must not include {added} in securityContext.capabilities.add" if added else ""
        yield (
            f'unrestricted capabilities (container "{name}" must set '
            f'securityContext.capabilities.drop=["ALL"]{more})'
        )
    if both.get("runAsNonRoot") is not True:
        yield f'runAsNonRoot != true (pod or container "{name}" must set securityContext.runAsNonRoot=true)'
    if both.get("runAsUser") == 0:
        yield f'runAsUser=0 (pod or container "{name}" must not set runAsUser=0)'
    if (both.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield (
            f'seccompProfile (pod or container "{name}" must set securityContext.seccompProfile.type to '
            '"RuntimeDefault" or "Localhost")'
        )
