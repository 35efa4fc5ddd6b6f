"""An image made on this machine, with no registry: the mounts of k8s_image.py, and a /workspace.

It is a few links, folders and the code (some KB); programs, Python and packages are this machine's own,
mounted read-only.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from k8s_image import Image, system_mounts

_OF_THE_RUNTIME = ("/dev", "/proc", "/sys")
_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "workspace")
# No name server of this machine's, no users: as in a slim image with a numeric user.
_FILES = {"etc/nsswitch.conf": "hosts: files dns\n", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"}
USER = "10001:0"


def write_tar(image: Image, scratch: Path) -> Path:
    """The root file system, for `podman import`."""
    root = scratch / "root"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    for one in system_mounts():
        if one["kind"] == "link" and not one["target"].startswith(_OF_THE_RUNTIME):
            root.joinpath(one["target"].lstrip("/")).symlink_to(one["source"])
    (root / "workspace").rmdir()
    image.copy_workspace(root / "workspace")
    path = scratch / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(root, ".")
    return path


def import_words(image: Image) -> Sequence[str]:
    """What a Dockerfile would say."""
    return (f"--change=USER {USER}", f"--change=ENV PATH={image.path}")


def mount_words() -> list[str]:
    """This machine's programs, in every container."""
    binds = [one for one in system_mounts() if one["kind"] == "bind"]
    kept = [one for one in binds if not one["target"].startswith(_OF_THE_RUNTIME)]
    return [f"--volume={one['source']}:{one['target']}:ro" for one in kept]
