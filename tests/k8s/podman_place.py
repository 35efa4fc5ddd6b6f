"""A pod's place on this machine: its address, its files, what its volumes are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k8s_objects import Manifest
from k8s_quantities import quantity
from podman_fields import Fields


@dataclass(frozen=True)
class Place:
    """Where a pod lives.

    Attributes:
        folder: its own files: emptyDirs, ConfigMaps, termination log.
        claims: the folder of each persistent volume claim.
        network: of podman's, made already.
        address: its own there.
        dns: the cluster's name server.
    """

    folder: Path
    claims: Mapping[str, Path]
    network: str
    address: str
    dns: str

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def own(self, volume: str) -> Path:
        """The folder of an emptyDir or a ConfigMap."""
        return self.folder / "volumes" / volume


@dataclass(frozen=True)
class Volume:
    """What is mounted: a folder, or memory where there is none."""

    folder: Path | None
    size: int = 0
    read_only: bool = False

    def words(self, target: str, read_only: bool) -> str:
        """The mount, as podman wants it."""
        if self.folder is None:
            return f"--mount=type=tmpfs,destination={target},tmpfs-size={self.size},tmpfs-mode=1777"
        return f"--volume={self.folder}:{target}{':ro' if read_only or self.read_only else ''}"


def volume_of(fields: Fields, place: Place) -> tuple[str, Volume]:
    """Name and volume; raises NotTranslated."""
    with fields:
        name = str(fields.take("name", ""))
        with (
            fields.inside("emptyDir") as empty,
            fields.inside("persistentVolumeClaim") as claim,
            fields.inside("configMap") as config,
        ):
            # Of a folder's size the kubelet takes care, no file system: it evicts.
            size = int(quantity(empty.take("sizeLimit", "0")))
            if empty.take("medium", "") == "Memory":
                return name, Volume(None, size)
            if claim_name := claim.take("claimName", ""):
                return name, Volume(place.claims[claim_name])
            return name, Volume(place.own(name), read_only=bool(config.take("name", "")))


def write_pod_files(pod: Manifest, place: Place, config_maps: Mapping[str, Mapping[str, str]]) -> None:
    """What the volumes' folders hold before the first process, and to whom they belong."""
    place.folder.mkdir()
    place.termination_log.touch()
    place.termination_log.chmod(0o666)
    group = pod["spec"]["securityContext"].get("fsGroup")
    for volume in pod["spec"]["volumes"]:
        folder = place.own(volume["name"])
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        for name, text in config_maps.get(volume.get("configMap", {}).get("name", ""), {}).items():
            (folder / name).write_text(text)
        if group is not None and "persistentVolumeClaim" in volume:
            claim = place.claims[volume["persistentVolumeClaim"]["claimName"]]
            os.chown(claim, -1, group)
            claim.chmod(claim.stat().st_mode | 0o2070)
