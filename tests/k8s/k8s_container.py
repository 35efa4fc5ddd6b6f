"""The last steps before a container's command, inside its new namespaces: its own root, its user, exec.

Run by the kubelet as `python -I -S k8s_container.py LAUNCH.json FD`. The child is the first process of a new
process namespace, with new mounts; its root is an empty tmpfs with the mounts of the launch file and nothing
else of the host. FD tells the kubelet how it went: `started`, or what was wrong. The parent ends with the
child's code; unshare(1) would make 1 of a SIGKILL.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_LAST_CAPABILITY = 40


def main(path: str, report: int) -> None:
    """The parent's part."""
    with open(path, encoding="utf-8") as file:
        launch = json.load(file)
    check(_LIBC.unshare(_CLONE_NEWPID | _CLONE_NEWNS), "unshare")
    child = os.fork()
    if child == 0:
        begin(launch, report)
    _, status = os.waitpid(child, 0)
    # As container runtimes tell a signal.
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def begin(launch: dict[str, Any], report: int) -> NoReturn:
    """The child's part, up to its command."""
    try:
        mount("", "/", flags=_MS_REC | _MS_PRIVATE)
        make_root(launch["root"], launch["mounts"])
        os.makedirs(launch["cwd"], exist_ok=True)
        os.chdir(launch["cwd"])
        if launch["read_only"]:
            mount("", "/", flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
        become(launch)
        reset_signals()
        # A session of its own: a signal to the process group stays inside.
        os.setsid()
        os.set_inheritable(report, False)
    except OSError as error:
        os.write(report, f"CreateContainerError {error}".encode())
        os._exit(128)
    os.write(report, b"started")
    try:
        os.execvpe(launch["argv"][0], launch["argv"], launch["env"])
    except OSError as error:
        said = f'exec: "{launch["argv"][0]}": {error.strerror}'
        os.write(report, f"\nStartError {said}".encode())
        os._exit(128)


def make_root(root: str, mounts: list[dict[str, Any]]) -> None:
    """A new root with these mounts, outermost first; the old one is out of reach."""
    mount("tmpfs", root, "tmpfs", options="mode=0755")
    for one in sorted(mounts, key=lambda one: one["target"].rstrip("/").split("/")):
        attach(root, one)
    os.chdir(root)
    check(_LIBC.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(_LIBC.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def attach(root: str, one: dict[str, Any]) -> None:
    """One mount, link or folder."""
    source, target, kind = one.get("source", ""), root + one["target"], one["kind"]
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if kind == "link":
        os.symlink(source, target)
        return
    if kind == "folder":
        os.makedirs(target, exist_ok=True)
        os.chmod(target, one["mode"])
        return
    if kind == "bind" and not os.path.isdir(source):
        os.close(os.open(target, os.O_CREAT, 0o644))
    else:
        os.makedirs(target, exist_ok=True)
    if kind == "bind":
        mount(source, target, flags=_MS_BIND | (_MS_REC if one.get("recursive") else 0))
        if one["read_only"]:
            mount("", target, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    else:
        flags = _MS_NOSUID | (_MS_RDONLY if one["read_only"] else 0)
        mount(kind, target, kind, flags=flags, options=one.get("options", ""))


def become(launch: dict[str, Any]) -> None:
    """The user, without what the security context takes away."""
    if launch["drop_all"]:
        for capability in range(_LAST_CAPABILITY + 1):
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if launch["no_new_privileges"]:
        check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.setgroups(launch["groups"])
    os.setgid(launch["group"])
    os.setuid(launch["user"])
    os.umask(0o022)
    # Only now: a change of user clears it.
    check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def reset_signals() -> None:
    """Python ignores some, and what is ignored stays so through exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    words = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    check(_LIBC.mount(*words), f"mount of {source or 'again'} at {target}")


def check(result: int, what: str) -> None:
    """OSError when the kernel said no."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
