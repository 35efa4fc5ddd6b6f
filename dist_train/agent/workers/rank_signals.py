"""SIGTERM in a rank: a stop reaches the handler of the user's script, and children can be ended by it.

The agent blocks SIGTERM, and a rank inherits that. Children of the rank must not: of a child that has
it blocked, `Popen.terminate()` and `Process.terminate()` have no effect, and the join after them waits
for ever. So the rank takes SIGTERM by a handler that does nothing of its own; exec puts back the default.

A worker of a DataLoader obeys its parent only: another's signal must not end it, since the rank still needs
it in order to save.

Not where the scheduler signals every process of a job step (Slurm; env.STEP_SIGNALS): there SIGTERM and
SIGUSR2 (its warning before the time limit) stay blocked in ranks and their children, since a preemption would
end the children that the rank saves with, and a child cannot know whose signal it gets. Children are ended by
SIGINT or SIGKILL there.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from dist_train import env
from dist_train.rundir.stop_file import StopFile

# A signal that comes during a fork is handled this much later.
_AGAIN_S = 0.02
# Of each thread that forks: its mask.
_forking = threading.local()


def take_sigterm() -> None:
    """Install the handler, unblock both signals, and prepare forked children; in the main thread, once."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    os.register_at_fork(
        before=_before_fork, after_in_parent=_in_forking_parent, after_in_child=_in_forked_child
    )
    # The agent blocks SIGUSR2 as well; a script may use it for itself.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR2})


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    # A library's handler may call this one, the one before its own, and then stops by itself.
    if signal.getsignal(signal.SIGTERM) is not _on_sigterm or not agent_interrupts():
        return
    if _in_fork_hook(frame):
        _thread.start_new_thread(_come_again, ())
    else:
        _thread.interrupt_main()  # as Ctrl-C; raised where the script stands


def _in_fork_hook(frame: FrameType | None) -> bool:
    """Whether a hook of a fork was interrupted: an exception there is printed and dropped."""
    hooks = (_before_fork.__code__, _in_forking_parent.__code__, _in_forked_child.__code__)
    while frame is not None:
        if frame.f_code in hooks:
            return True
        frame = frame.f_back
    return False


def _come_again() -> None:
    time.sleep(_AGAIN_S)
    _thread.interrupt_main(signal.SIGTERM)


def agent_interrupts() -> bool:
    """Whether it is the agent that ends this rank: a scheduler's signal to all processes does not."""
    path = os.environ.get(env.STOP_FILE)
    if not path:
        return False
    try:
        stop_file = StopFile.open(Path(path))
    except OSError:
        return False
    try:
        return stop_file.interrupts
    finally:
        stop_file.close()


def _before_fork() -> None:
    # A signal that comes before the child has put back its own handling waits until then.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _in_forking_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_forked_child() -> None:
    if _starts_loader_worker(sys._getframe(1)):
        _obey_only(os.getppid())  # it stays blocked
        return
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _starts_loader_worker(frame: FrameType | None) -> bool:
    """Whether a DataLoader is what forks: its frames are on the stack, not below another worker's."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name == "torch.utils.data._utils.worker":
            return False
        if name == "torch.utils.data.dataloader":
            return True
        frame = frame.f_back
    return False


def _obey_only(parent: int) -> None:
    """Let SIGTERM end this process only where its parent sent it, as torch's own handler in a worker does."""

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="sigterm-of-the-parent", daemon=True).start()
