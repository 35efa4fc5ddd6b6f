"""SIGTERM in a process that multiprocessing has started for a rank: it obeys who started it, no stranger.

A loader worker or a worker of a pool that dies by a scheduler's signal to all processes takes the rank's save
with it. Such a process has SIGTERM blocked, and a thread that looks at the sender of each. What it starts in
its turn is not to inherit the mask: subprocess, os.system and os.posix_spawn start commands without it.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

# The interpreter of a spawned process runs this while it reads how it is to be prepared. It may be another
# one (multiprocessing.set_executable), without dist_train: there SIGTERM has its default.
_IN_SPAWNED_PROCESS = """
try:
    from dist_train.agent.workers.signals.spawned_process import protect
except ImportError:
    import signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
else:
    protect(PARENT, SESSION)
"""
_protected = False
_commands_start_unblocked = False


def obey_only(parent: int, *, or_its_session: bool, session: int | None = None) -> None:
    """Let SIGTERM act in this process only where `parent` sent it; in the main thread.

    Args:
        or_its_session: also where another process of the parent's session did, or one that has ended since.
        session: the parent's, where it is not this process's own.
    """
    global _protected, _commands_start_unblocked
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Delivery by a thread wakes no system call of the main thread; this does.
    signal.signal(signal.SIGURG, _wake)
    _protected = True
    if not _commands_start_unblocked:
        _commands_start_unblocked = True
        _start_commands_unblocked()
    main_thread = _thread.get_ident()
    of_session = os.getsid(0) if session is None else session

    def wait() -> None:
        while True:
            sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
            if sender == parent or (or_its_session and _is_of_session(sender, of_session)):
                _deliver(main_thread)

    _thread.start_new_thread(wait, ())


def leave_protection(mask: Iterable[int]) -> set[int]:
    """Return the signal mask of a child that is not protected, and take it as such."""
    global _protected
    own = set(mask)
    if _protected:
        own.discard(signal.SIGTERM)
    _protected = False
    return own


def protect_spawned_processes() -> None:
    """Let processes that multiprocessing spawns, or has its fork server fork, obey only who started them."""
    from multiprocessing import spawn, util

    start, prepare = util.spawnv_passfds, spawn.get_preparation_data

    def start_blocked(path: Any, args: Any, passfds: Any) -> int:
        # Its trackers and fork servers have no use for SIGTERM, and end with who started them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return start(path, args, passfds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def prepare_protected(name: str) -> dict[str, Any]:
        return {"dist_train_signals": _Protected(), **prepare(name)}

    util.spawnv_passfds = start_blocked
    spawn.get_preparation_data = prepare_protected


class _Protected:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return exec, (_IN_SPAWNED_PROCESS, {"PARENT": os.getpid(), "SESSION": os.getsid(0)})


def _wake(number: int, frame: FrameType | None) -> None:
    pass


def _is_of_session(sender: int, session: int) -> bool:
    """Whether a rank's own process sent it; 0 is one of another pid namespace: the scheduler."""
    try:
        return sender != 0 and os.getsid(sender) == session
    except ProcessLookupError:
        return True  # `kill` ends at once; a scheduler's daemon lives on
    except PermissionError:
        return False


def _deliver(main_thread: int) -> None:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None and worker.get_worker_info() is not None:
        os._exit(0)  # as torch's own handler in a worker does
    if callable(signal.getsignal(signal.SIGTERM)):
        _thread.interrupt_main(signal.SIGTERM)
        signal.pthread_kill(main_thread, signal.SIGURG)
        return
    # The default, or a handler in C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _start_commands_unblocked() -> None:
    import subprocess
    from multiprocessing.resource_tracker import ResourceTracker

    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    ensure_running = ResourceTracker.ensure_running

    def execute_child(self: Any, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        # With one, Python runs the hooks of a fork in the child, and they unblock the signal.
        execute(self, args, executable, preexec_fn or _nothing, *rest)

    def ensure_running_masked(self: ResourceTracker) -> None:
        # Python 3.11 unblocks SIGTERM there (cpython #127586).
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            ensure_running(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    ResourceTracker.ensure_running = ensure_running_masked  # type: ignore[method-assign]
    os.posix_spawn = _unblocked(os.posix_spawn)
    os.posix_spawnp = _unblocked(os.posix_spawnp)
    os.system = _system


def _nothing() -> None:
    pass


def _unblocked(start: Callable[..., int]) -> Callable[..., int]:
    def started(*args: Any, **options: Any) -> int:
        options.setdefault("setsigmask", _own_mask())
        return start(*args, **options)

    return started


def _own_mask() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) - {signal.SIGTERM}


def _system(command: Any) -> int:
    ignored = (signal.SIGINT, signal.SIGQUIT)
    child = os.posix_spawn("/bin/sh", ["sh", "-c", os.fsdecode(command)], os.environ, setsigdef=ignored)
    return os.waitpid(child, 0)[1]
