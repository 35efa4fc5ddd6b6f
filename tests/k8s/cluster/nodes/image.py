"""Image of all containers: this machine's programs and interpreter, read-only, and a /workspace.

`python` is the interpreter of the tests, with its packages. Every image name means this image; names that
cannot be pulled are in Kubelet.bad_images.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dist_train
from cluster.objects import Manifest

# containerd's default: /dev/shm of 64 MiB unless a volume is mounted there.
_SHM = "size=64m,mode=1777"
_PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
_SETTINGS = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_NOT_COPIED = shutil.ignore_patterns("runs", ".git", "__pycache__", ".venv")


@dataclass
class Image:
    """Contents of the image, as of a Dockerfile.

    Attributes:
        workspace: copied to /workspace in each pod, as by COPY; None: no such folder.
        user: USER; not in /etc/passwd, as on OpenShift.
        entrypoint: used when a container has no command.
    """

    workspace: Path | None = None
    user: int = 1000
    group: int = 0
    entrypoint: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """PATH: this interpreter first."""
        return f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

    def copy_workspace(self, target: Path) -> bool:
        """Copy the workspace, world-readable; returns whether there is one."""
        if self.workspace is None:
            return False
        shutil.copytree(self.workspace, target, ignore=_NOT_COPIED, symlinks=True)
        for path in [target, *target.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        return True


def bind(source: Path | str, target: str, read_only: bool = True, recursive: bool = False) -> Manifest:
    """Bind mount of a file or folder of this machine."""
    kind = {"kind": "bind", "source": str(source), "target": target}
    return {**kind, "read_only": read_only, "recursive": recursive}


def system_mounts() -> Iterator[Manifest]:
    """Mounts of the root file system, without the pod's own files."""
    yield {"kind": "folder", "target": "/tmp", "mode": 0o1777}
    for name in _PROGRAMS:
        path = Path("/", name)
        if path.is_symlink():
            yield {"kind": "link", "target": str(path), "source": str(path.readlink())}
        elif path.is_dir():
            yield bind(path, str(path))
    for name in _SETTINGS:
        if Path("/etc", name).exists():
            yield bind(Path("/etc", name), f"/etc/{name}")
    for folder in sorted(_python_folders()):
        yield bind(folder, str(folder))
    yield {"kind": "proc", "target": "/proc", "read_only": False}
    yield {"kind": "sysfs", "target": "/sys", "read_only": True}
    yield bind("/sys/fs/cgroup", "/sys/fs/cgroup", recursive=True)
    for name in _DEVICES:
        yield bind(Path("/dev", name), f"/dev/{name}", read_only=False)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        yield {"kind": "link", "target": f"/dev/{name}", "source": f"/proc/self/{target}"}
    yield {"kind": "tmpfs", "target": "/dev/shm", "read_only": False, "options": _SHM}


def _python_folders() -> set[Path]:
    package = Path(dist_train.__file__).resolve().parent.parent
    folders = {Path(sys.prefix), Path(sys.base_prefix).resolve(), Path(sys.base_prefix), package}
    return {folder for folder in folders if not folder.is_relative_to("/usr") and folder != Path("/")}
