"""Translate a pod's manifest to the arguments of `podman run`; unknown fields are refused.

Meaning of each field: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
`podman kube play` 4.3 silently ignores medium, sizeLimit, fsGroup and others, so it cannot be used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from cluster.api.quantities import quantity
from cluster.nodes.container_spec import expanded, field_of
from cluster.nodes.network import DOMAIN
from cluster.objects import Manifest
from cluster.podman.manifest_fields import Fields, UnsupportedField
from cluster.podman.placement import Placement, Volume, volume_of


def run_args(pod: Manifest, place: Placement) -> list[str]:
    """Arguments of `podman run`; raises UnsupportedField."""
    with Fields("pod", pod) as top:
        top.ignore("status")
        args = list(_metadata(top.inside("metadata")))
        with top.inside("spec") as spec:
            args += _pod(spec, pod["metadata"]["namespace"], place)
            volumes = dict(volume_of(fields, place) for fields in spec.each("volumes"))
            containers = spec.each("containers")
        if len(containers) != 1:
            raise UnsupportedField(f"pod.spec.containers: {len(containers)}")
        return [*args, *_container(containers[0], pod, place, volumes)]


def _metadata(metadata: Fields) -> Iterator[str]:
    with metadata:
        # The API server's bookkeeping.
        metadata.ignore("uid", "namespace", "generateName", "finalizers", "ownerReferences")
        labels: dict[str, str] = metadata.take("labels", {})
        annotations: dict[str, str] = metadata.take("annotations", {})
        yield f"--name={metadata.take('name', '')}"
        yield from (f"--label={key}={value}" for key, value in labels.items())
        yield from (f"--annotation={key}={value}" for key, value in annotations.items())


def _pod(spec: Fields, namespace: str, place: Placement) -> Iterator[str]:
    # For the scheduler; the subdomain is for the name server (name_server.py).
    spec.ignore("tolerations", "nodeName", "schedulerName", "subdomain")
    spec.demand("enableServiceLinks", False)
    spec.demand("automountServiceAccountToken", False)
    spec.demand("restartPolicy", "Never")
    yield "--restart=no"
    yield f"--hostname={spec.take('hostname', '')}"
    yield f"--stop-timeout={spec.take('terminationGracePeriodSeconds', 30)}"
    yield f"--network={place.network}"
    yield f"--ip={place.address}"
    spec.demand("dnsPolicy", "ClusterFirst")
    yield f"--dns={place.dns}"
    yield "--dns-option=ndots:5"
    yield from (f"--dns-search={zone}" for zone in (f"{namespace}.{DOMAIN}", DOMAIN, "cluster.local"))
    with spec.inside("securityContext") as context:
        # PodmanPods.start checks the image's user; write_pod_files sets the volumes' group.
        context.ignore("runAsNonRoot", "fsGroupChangePolicy")
        if (user := context.take("runAsUser", "")) != "":
            yield f"--user={user}"
        if (group := context.take("fsGroup", "")) != "":
            yield f"--group-add={group}"
        with context.inside("seccompProfile") as seccomp:
            # podman's default profile.
            seccomp.demand("type", "RuntimeDefault")


def _container(
    container: Fields, pod: Manifest, place: Placement, volumes: Mapping[str, Volume]
) -> Iterator[str]:
    with container:
        # The name distinguishes containers of a pod; ports are informational.
        container.ignore("name", "ports")
        environ = dict(_environ(container.each("env"), pod))
        container.demand("imagePullPolicy", "IfNotPresent")
        yield "--pull=never"
        # Without it podman writes the user into /etc/passwd, which a kubelet does not.
        yield "--passwd=false"
        entrypoint = [expanded(arg, environ) for arg in container.take("command", list[str]())]
        yield f"--entrypoint={json.dumps(entrypoint)}"
        yield f"--workdir={container.take('workingDir', '/')}"
        yield from (f"--env={name}={value}" for name, value in environ.items())
        yield from _resources(container.inside("resources"))
        yield from _security(container.inside("securityContext"))
        # PodmanPod.message reads it as a kubelet does.
        container.demand("terminationMessagePolicy", "FallbackToLogsOnError")
        yield f"--volume={place.termination_log}:{container.take('terminationMessagePath', '')}"
        for mount in container.each("volumeMounts"):
            with mount:
                volume = volumes[mount.take("name", "")]
                yield volume.arg(mount.take("mountPath", ""), mount.take("readOnly", False))
        yield str(container.take("image", ""))
        yield from (expanded(arg, environ) for arg in container.take("args", list[str]()))


def _environ(variables: list[Fields], pod: Manifest) -> Iterator[tuple[str, str]]:
    so_far: dict[str, str] = {}
    for variable in variables:
        with variable, variable.inside("valueFrom") as source, source.inside("fieldRef") as field:
            name, value = str(variable.take("name", "")), str(variable.take("value", ""))
            field.demand("apiVersion", "v1", None)
            path = str(field.take("fieldPath", ""))
            so_far[name] = field_of(pod, path) if path else expanded(value, so_far)
            yield name, so_far[name]


def _resources(resources: Fields) -> Iterator[str]:
    with resources, resources.inside("requests") as requests, resources.inside("limits") as limits:
        # Memory requests are for the scheduler; disk limits are enforced by the kubelet's eviction.
        requests.ignore("memory", "ephemeral-storage")
        limits.ignore("ephemeral-storage")
        yield f"--cpu-shares={int(1024 * quantity(requests.take('cpu', '0')))}"
        yield f"--cpus={quantity(limits.take('cpu', '0'))}"
        yield f"--memory={int(quantity(limits.take('memory', '0')))}b"


def _security(context: Fields) -> Iterator[str]:
    with context, context.inside("capabilities") as capabilities:
        yield from (f"--cap-drop={name.lower()}" for name in capabilities.take("drop", list[str]()))
        yield from (f"--cap-add={name.lower()}" for name in capabilities.take("add", list[str]()))
        context.demand("allowPrivilegeEscalation", False)
        yield "--security-opt=no-new-privileges"
        if context.take("readOnlyRootFilesystem", False):
            yield "--read-only"
            # By default podman adds a writable /run, /tmp and /var/tmp.
            yield "--read-only-tmpfs=false"
