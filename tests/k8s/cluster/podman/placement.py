"""Address, files and volumes of a pod on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.api.quantities import quantity
from cluster.objects import Manifest
from cluster.podman.manifest_fields import Fields


@dataclass(frozen=True)
class Placement:
    """Resources of one pod on this machine.

    Attributes:
        folder: files of the pod: emptyDirs, ConfigMaps, termination log.
        claims: folder of each persistent volume claim.
        network: name of an existing podman network.
        address: of the pod, in that network.
        dns: address of the name server.
    """

    folder: Path
    claims: Mapping[str, Path]
    network: str
    address: str
    dns: str

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def volume_folder(self, volume: str) -> Path:
        """Folder of an emptyDir or a ConfigMap."""
        return self.folder / "volumes" / volume


@dataclass(frozen=True)
class Volume:
    """A volume: a folder, or a tmpfs when that is None."""

    folder: Path | None
    size: int = 0
    read_only: bool = False

    def arg(self, target: str, read_only: bool) -> str:
        """Argument of `podman run` for a mount."""
        if self.folder is None:
            return f"--mount=type=tmpfs,destination={target},tmpfs-size={self.size},tmpfs-mode=1777"
        return f"--volume={self.folder}:{target}{':ro' if read_only or self.read_only else ''}"


def volume_of(fields: Fields, place: Placement) -> tuple[str, Volume]:
    """Name and volume; raises UnsupportedField."""
    with fields:
        name = str(fields.take("name", ""))
        with (
            fields.inside("emptyDir") as empty,
            fields.inside("persistentVolumeClaim") as claim,
            fields.inside("configMap") as config,
        ):
            # The size limit of a folder is enforced by the kubelet's eviction, not by the file system.
            size = int(quantity(empty.take("sizeLimit", "0")))
            if empty.take("medium", "") == "Memory":
                return name, Volume(None, size)
            if claim_name := claim.take("claimName", ""):
                return name, Volume(place.claims[claim_name])
            return name, Volume(place.volume_folder(name), read_only=bool(config.take("name", "")))


def write_pod_files(pod: Manifest, place: Placement, config_maps: Mapping[str, Mapping[str, str]]) -> None:
    """Write the files of the volumes and set their group, before the first process."""
    place.folder.mkdir()
    place.termination_log.touch()
    place.termination_log.chmod(0o666)
    group = pod["spec"]["securityContext"].get("fsGroup")
    for volume in pod["spec"]["volumes"]:
        folder = place.volume_folder(volume["name"])
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        for name, text in config_maps.get(volume.get("configMap", {}).get("name", ""), {}).items():
            (folder / name).write_text(text)
        if group is not None and "persistentVolumeClaim" in volume:
            claim = place.claims[volume["persistentVolumeClaim"]["claimName"]]
            os.chown(claim, -1, group)
            claim.chmod(claim.stat().st_mode | 0o2070)
