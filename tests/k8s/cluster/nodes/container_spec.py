"""Translate a container's manifest to its process: arguments, environment, mounts, user.

https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
Not emulated: resourceFieldRef, projected and hostPath volumes, service account tokens, seccomp; fsGroup sets
group and mode of a volume's top folder only.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.api.quantities import quantity
from cluster.api.store import Store
from cluster.nodes.image import Image, bind, system_mounts
from cluster.objects import CONFIG_MAPS, SECRETS, SERVICES, Manifest

_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_SUBSCRIPT = re.compile(r"^metadata\.(?P<group>labels|annotations)\['(?P<key>[^']+)'\]$")


class CannotStart(Exception):
    """The container cannot be started now; the kubelet retries.

    Attributes:
        reason: reason of state.waiting: ContainerCreating, CreateContainerConfigError.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class PodContext:
    """Environment of a pod on this machine.

    Attributes:
        folder: files of the pod.
        claims: folder of each persistent volume claim, by namespace and name.
    """

    store: Store
    image: Image
    folder: Path
    claims: Mapping[tuple[str, str], Path]


def process_spec(site: PodContext, pod: Manifest, container: Manifest) -> Manifest:
    """Build the spec file of container_init.py."""
    pod_context = pod["spec"].get("securityContext") or {}
    context = {**pod_context, **(container.get("securityContext") or {})}
    user = int(context.get("runAsUser", site.image.user))
    if context.get("runAsNonRoot") and user == 0:
        raise CannotStart(
            "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"
        )
    groups = [*(pod_context.get("supplementalGroups") or [])]
    groups += [pod_context["fsGroup"]] if "fsGroup" in pod_context else []
    environ = environ_of(site, pod, container)
    argv = [*(container.get("command") or site.image.entrypoint), *(container.get("args") or [])]
    if not argv:
        raise CannotStart("CreateContainerError", "no command specified")
    drop = (context.get("capabilities") or {}).get("drop") or []
    return {
        "root": str(site.folder / "root"),
        "mounts": [*system_mounts(), *pod_mounts(site, pod, container)],
        "argv": [expanded(word, environ) for word in argv],
        "env": environ,
        "cwd": container.get("workingDir") or "/",
        "user": user,
        "group": int(context.get("runAsGroup", site.image.group)),
        "groups": groups,
        "read_only": bool(context.get("readOnlyRootFilesystem")),
        "drop_all": "ALL" in drop,
        "no_new_privileges": context.get("allowPrivilegeEscalation") is False,
    }


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is set, and `$$` by `$`."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return environ.get(found["name"], found[0])

    return _REFERENCE.sub(value, text)


# Variables.


def environ_of(site: PodContext, pod: Manifest, container: Manifest) -> dict[str, str]:
    """Environment of the process: the runtime's, the services', then the container's in order."""
    environ = {"PATH": site.image.path, "HOSTNAME": pod["spec"].get("hostname", pod["metadata"]["name"])}
    environ |= {"HOME": "/", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    if pod["spec"].get("enableServiceLinks", True):
        environ |= dict(_service_links(site.store, pod["metadata"]["namespace"]))
    for source in container.get("envFrom") or []:
        for kind, resource in (("configMapRef", CONFIG_MAPS), ("secretRef", SECRETS)):
            if kind in source:
                data = _data(site, pod, resource.kind, source[kind]["name"])
                prefix = source.get("prefix", "")
                environ |= {prefix + name: value.decode() for name, value in data.items()}
    for variable in container.get("env") or []:
        if "valueFrom" in variable:
            value = _value_from(site, pod, variable["valueFrom"])
        else:
            value = expanded(variable.get("value", ""), environ)
        if value is not None:
            environ[variable["name"]] = value
    return environ


def _service_links(store: Store, namespace: str) -> Iterator[tuple[str, str]]:
    for service in store.select(SERVICES, namespace):
        if service["spec"].get("clusterIP") == "None":
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        port = (service["spec"].get("ports") or [{"port": 0}])[0]["port"]
        address = service["spec"]["clusterIP"]
        yield f"{name}_SERVICE_HOST", address
        yield f"{name}_SERVICE_PORT", str(port)
        yield f"{name}_PORT", f"tcp://{address}:{port}"


def _value_from(site: PodContext, pod: Manifest, source: Manifest) -> str | None:
    for kind, resource in (("configMapKeyRef", CONFIG_MAPS), ("secretKeyRef", SECRETS)):
        if kind not in source:
            continue
        wanted = source[kind]
        data = _data(site, pod, resource.kind, wanted["name"], optional=bool(wanted.get("optional")))
        if wanted["key"] in data:
            return data[wanted["key"]].decode()
        if wanted.get("optional"):
            return None
        where = f"{resource.kind} {pod['metadata']['namespace']}/{wanted['name']}"
        raise CannotStart("CreateContainerConfigError", f"couldn't find key {wanted['key']} in {where}")
    return field_of(pod, source["fieldRef"]["fieldPath"])


def field_of(pod: Manifest, path: str) -> str:
    """Value of a fieldRef."""
    if found := _SUBSCRIPT.match(path):
        return str((pod["metadata"].get(found["group"]) or {}).get(found["key"], ""))
    value: object = pod
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value)


def _data(site: PodContext, pod: Manifest, kind: str, name: str, optional: bool = False) -> dict[str, bytes]:
    resource = CONFIG_MAPS if kind == "ConfigMap" else SECRETS
    found = site.store.find(resource, pod["metadata"]["namespace"], name)
    if found is None:
        if optional:
            return {}
        raise CannotStart("CreateContainerConfigError", f'{kind.lower()} "{name}" not found')
    texts = found.get("data") or {}
    coded = found.get("binaryData") or {}
    if kind == "Secret":
        texts, coded = found.get("stringData") or {}, texts
    plain = {key: text.encode() for key, text in texts.items()}
    return {**plain, **{key: base64.b64decode(text) for key, text in coded.items()}}


# Mounts.


def pod_mounts(site: PodContext, pod: Manifest, container: Manifest) -> Iterator[Manifest]:
    """Mounts of the pod's own files and volumes."""
    for name in ("hosts", "hostname", "resolv.conf", "nsswitch.conf", "passwd", "group"):
        yield bind(site.folder / "etc" / name, f"/etc/{name}")
    log = site.folder / f"{container['name']}.termination"
    yield bind(log, container["terminationMessagePath"], read_only=False)
    if (site.folder / "workspace").is_dir():
        yield bind(site.folder / "workspace", "/workspace", read_only=False)
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        yield _volume_mount(site, pod, volumes[mount["name"]], mount)


def write_pod_files(site: PodContext, pod: Manifest) -> None:
    """Write the files that `pod_mounts` binds; once, before the first container."""
    etc = site.folder / "etc"
    (site.folder / "root").mkdir()
    etc.mkdir()
    texts = {
        "hosts": "127.0.0.1 localhost\n",
        "hostname": f"{pod['spec'].get('hostname') or pod['metadata']['name']}\n",
        "resolv.conf": "",
        # No name server: names resolve by the hosts file alone.
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        "group": "root:x:0:\nnogroup:x:65534:\n",
    }
    for name, text in texts.items():
        (etc / name).write_text(text)
    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        log = site.folder / f"{container['name']}.termination"
        log.touch()
        log.chmod(0o666)
    site.image.copy_workspace(site.folder / "workspace")


def _volume_mount(site: PodContext, pod: Manifest, volume: Manifest, mount: Manifest) -> Manifest:
    target, read_only = str(mount["mountPath"]), bool(mount.get("readOnly"))
    empty = volume.get("emptyDir")
    if empty is not None and (empty or {}).get("medium") == "Memory":
        size = f",size={int(quantity(empty['sizeLimit']))}" if "sizeLimit" in empty else ""
        return {"kind": "tmpfs", "target": target, "read_only": read_only, "options": f"mode=1777{size}"}
    source, read_only = _volume_folder(site, pod, volume), read_only or not _is_writable(volume)
    if sub := mount.get("subPath"):
        source = source / sub
        if not source.exists():
            source.mkdir(parents=True)
            source.chmod(0o777)
    return bind(source, target, read_only)


def _is_writable(volume: Manifest) -> bool:
    claim = volume.get("persistentVolumeClaim")
    return "emptyDir" in volume or (claim is not None and not claim.get("readOnly"))


def _volume_folder(site: PodContext, pod: Manifest, volume: Manifest) -> Path:
    name, namespace = str(volume["name"]), str(pod["metadata"]["namespace"])
    folder = site.folder / "volumes" / name
    if "persistentVolumeClaim" in volume:
        claim = site.claims.get((namespace, volume["persistentVolumeClaim"]["claimName"]))
        if claim is None:
            raise CannotStart(
                "ContainerCreating", f'MountVolume.SetUp failed for volume "{name}": no such claim'
            )
        _apply_fs_group(claim, pod)
        return claim
    if "emptyDir" in volume:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o777)
        return folder
    for key, kind, named in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
        if key in volume:
            _write_files(site, pod, volume[key], kind, volume[key][named], folder)
            return folder
    raise CannotStart(
        "ContainerCreating", f'volume "{name}": {sorted(volume)} is not emulated by this cluster'
    )


def _write_files(
    site: PodContext, pod: Manifest, source: Manifest, kind: str, name: str, folder: Path
) -> None:
    try:
        data = _data(site, pod, kind, name, optional=bool(source.get("optional")))
    except CannotStart as error:
        text = f'MountVolume.SetUp failed for volume "{folder.name}" : {error.message}'
        raise CannotStart("ContainerCreating", text) from None
    folder.mkdir(parents=True, exist_ok=True)
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    for item in items:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[item["key"]])
        path.chmod(item.get("mode", source.get("defaultMode", 0o644)))


def _apply_fs_group(folder: Path, pod: Manifest) -> None:
    group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
    if group is not None:
        os.chown(folder, -1, group)
        folder.chmod(folder.stat().st_mode | 0o2770)
