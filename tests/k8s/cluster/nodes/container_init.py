"""Program that starts a container's command: new namespaces, root file system, user, exec.

Run by the kubelet as `python -I -S container_init.py SPEC.json FD`. The child is the first process of a new
process namespace, with new mounts; its root is an empty tmpfs with the mounts of the spec and nothing else
of the host. It reports `started` or an error on FD. The parent exits with the child's code; unshare(1) would
turn a SIGKILL into 1.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_LAST_CAPABILITY = 40


def main(path: str, report: int, execute: Callable[[dict[str, Any]], NoReturn] | None = None) -> None:
    """Fork the container's process 1 and exit with its code; `execute` runs the command instead of exec."""
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    check(_LIBC.unshare(_CLONE_NEWPID | _CLONE_NEWNS), "unshare")
    child = os.fork()
    if child == 0:
        prepare(spec, report)
        (execute or functools.partial(execute_command, report))(spec)
    _, status = os.waitpid(child, 0)
    # As container runtimes report a signal.
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def prepare(spec: dict[str, Any], report: int) -> None:
    """Make process 1 what the spec says, and report that it starts."""
    try:
        mount("", "/", flags=_MS_REC | _MS_PRIVATE)
        make_root(spec["root"], spec["mounts"])
        os.makedirs(spec["cwd"], exist_ok=True)
        os.chdir(spec["cwd"])
        if spec["read_only"]:
            mount("", "/", flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
        drop_privileges(spec)
        reset_signals()
        # A new session: a signal to the process group stays inside the container.
        os.setsid()
        os.set_inheritable(report, False)
    except OSError as error:
        os.write(report, f"CreateContainerError {error}".encode())
        os._exit(128)
    os.write(report, b"started")


def execute_command(report: int, spec: dict[str, Any]) -> NoReturn:
    """Execute the command."""
    try:
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        error_text = f'exec: "{spec["argv"][0]}": {error.strerror}'
        os.write(report, f"\nStartError {error_text}".encode())
        os._exit(128)


def make_root(root: str, mounts: list[dict[str, Any]]) -> None:
    """Pivot to a new root with these mounts, outermost first, and detach the old one."""
    mount("tmpfs", root, "tmpfs", options="mode=0755")
    for one in sorted(mounts, key=lambda one: one["target"].rstrip("/").split("/")):
        attach(root, one)
    os.chdir(root)
    check(_LIBC.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(_LIBC.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def attach(root: str, one: dict[str, Any]) -> None:
    """Create one mount, link or folder."""
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


def drop_privileges(spec: dict[str, Any]) -> None:
    """Drop capabilities, then change to the user and groups."""
    if spec["drop_all"]:
        for capability in range(_LAST_CAPABILITY + 1):
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if spec["no_new_privileges"]:
        check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.setgroups(spec["groups"])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    os.umask(0o022)
    # Last: a change of user clears it.
    check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def reset_signals() -> None:
    """Restore default handlers: Python ignores some signals, which exec would inherit."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    args = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    check(_LIBC.mount(*args), f"mount of {source or 'again'} at {target}")


def check(result: int, what: str) -> None:
    """Raise OSError for a negative result."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
