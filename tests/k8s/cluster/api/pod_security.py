"""Admission by the restricted Pod Security Standard: pods are refused, Jobs get a warning.

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
https://kubernetes.io/docs/concepts/security/pod-security-admission/ : `enforce` applies to pods alone, a
Job's creator only gets a warning (`warn`), so that the Job exists without pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cluster.api.errors import forbidden
from cluster.api.store import Store
from cluster.objects import JOBS, NAMESPACES, PODS, Manifest, Resource

LABEL = "pod-security.kubernetes.io/"
_KEPT = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral")
_VOLUMES = frozenset({*_KEPT, "persistentVolumeClaim", "projected", "secret"})


@dataclass(frozen=True)
class PodSecurity:
    """Admission plug-in; reads the labels of the namespace."""

    store: Store

    def __call__(self, resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        """Refuse a pod that violates the standard, or warn of a Job's template."""
        if resource not in (PODS, JOBS):
            return
        namespace = self.store.get(NAMESPACES, "", obj["metadata"]["namespace"])
        labels = namespace["metadata"].get("labels") or {}
        spec = obj["spec"] if resource == PODS else obj["spec"]["template"]["spec"]
        violations = ", ".join(violations_of(spec))
        if violations and resource == PODS and labels.get(f"{LABEL}enforce") == "restricted":
            why = f'violates PodSecurity "restricted:latest": {violations}'
            raise forbidden(PODS, obj["metadata"]["name"], why)
        if violations and labels.get(f"{LABEL}warn") == "restricted":
            warn(f'would violate PodSecurity "restricted:latest": {violations}'.replace('"', '\\"'))


def violations_of(spec: Manifest) -> Iterator[str]:
    """Violations of a pod's spec, with the server's texts."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or []:
        kinds = set(volume) - {"name"} or {"emptyDir"}
        if not kinds <= _VOLUMES:
            yield f'restricted volume types (volume "{volume["name"]}" uses {", ".join(sorted(kinds))})'
    pod = spec.get("securityContext") or {}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        yield from _container_violations(container["name"], pod, container.get("securityContext") or {})


def _container_violations(name: str, pod: Manifest, own: Manifest) -> Iterator[str]:
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
