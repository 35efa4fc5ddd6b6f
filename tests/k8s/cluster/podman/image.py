"""Build a podman image without a registry: the mounts of nodes/image.py, and a /workspace.

It has links, folders and the code (a few KB); programs, Python and packages are this machine's, mounted
read-only.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from cluster.nodes.image import Image, system_mounts

_RUNTIME_FOLDERS = ("/dev", "/proc", "/sys")
_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "workspace")
# Names by hosts file and DNS, no users: as in a slim image with a numeric user.
_FILES = {"etc/nsswitch.conf": "hosts: files dns\n", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"}
USER = "10001:0"


def write_tar(image: Image, scratch: Path) -> Path:
    """Write the root file system as a tar file, for `podman import`."""
    root = scratch / "root"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    for one in system_mounts():
        if one["kind"] == "link" and not one["target"].startswith(_RUNTIME_FOLDERS):
            root.joinpath(one["target"].lstrip("/")).symlink_to(one["source"])
    (root / "workspace").rmdir()
    image.copy_workspace(root / "workspace")
    path = scratch / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(root, ".")
    return path


def import_args(image: Image) -> Sequence[str]:
    """Arguments of `podman import`: USER and ENV."""
    return (f"--change=USER {USER}", f"--change=ENV PATH={image.path}")


def mount_args() -> list[str]:
    """Arguments of `podman run`: mounts of this machine's programs."""
    binds = [one for one in system_mounts() if one["kind"] == "bind"]
    kept = [one for one in binds if not one["target"].startswith(_RUNTIME_FOLDERS)]
    return [f"--volume={one['source']}:{one['target']}:ro" for one in kept]
