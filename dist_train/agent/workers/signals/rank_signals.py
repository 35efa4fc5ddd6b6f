"""SIGTERM in a rank: by a handler, not by a mask, so that a stop reaches the handler of the user's script.

The agent blocks SIGTERM, and a rank inherits that: it is protected until the handler is installed. From
then on SIGTERM is not blocked, since every command that the rank starts would inherit that, and neither
`Popen.terminate()` nor `timeout` would end it. Exec puts back the default for a signal with a handler.

Where the scheduler signals every process of a job step (Slurm; env.STEP_SIGNALS), its SIGTERM calls the
script's own handler at once. Ours passes over it, and the agent interrupts the script if need be. SIGUSR2,
Slurm's warning before the time limit, stays blocked there in ranks and in what they start.

The processes of multiprocessing that a rank still needs in order to save obey only the rank
(child_signals): a DataLoader's workers, and all of them where the scheduler signals every process.
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
from dist_train.agent.workers.signals import child_signals
from dist_train.rundir.stop_file import StopFile

# A signal that comes during a fork is handled this much later.
_AGAIN_S = 0.02
# The agent has the scheduler's signal within this time of the rank's.
_STOP_IS_KNOWN_S = 0.5
# `multiprocess` is the one of HF datasets.
_FORKING_MODULES = ("multiprocessing.popen_fork", "multiprocess.popen_fork")
# Of each thread that forks: its mask.
_forking = threading.local()
_interrupted = False


def take_sigterm(step_signals: bool) -> None:
    """Install the handler, unblock what may be, and prepare children; in the main thread, once.

    Args:
        step_signals: the scheduler signals this rank and its children too.
    """
    signal.signal(signal.SIGTERM, _on_sigterm)
    prepare_forks(step_signals)
    if step_signals:
        # Blocked, and harmless also where a library unblocks it.
        signal.signal(signal.SIGUSR2, _pass_over)
        child_signals.protect_spawned_processes()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    else:
        # The agent blocks SIGUSR2 as well; a script may use it for itself.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR2})


def prepare_forks(protect_all: bool) -> None:
    """Give forked children a SIGTERM of their own.

    Args:
        protect_all: all processes of multiprocessing obey only their parent, not only loader workers.
    """

    def in_child() -> None:
        _in_forked_child(protect_all)

    os.register_at_fork(before=_before_fork, after_in_parent=_in_forking_parent, after_in_child=in_child)


def script_handles_sigterm() -> bool:
    """Whether the script has installed a handler of its own."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler is not _on_sigterm and callable(handler)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _interrupted
    # A library's handler may call this one, the one before its own, and then stops by itself.
    if signal.getsignal(signal.SIGTERM) is not _on_sigterm or _interrupted:
        return
    if not agent_interrupts():
        _note_passed_over()
    elif _in_fork_hook(frame):
        _thread.start_new_thread(_come_again, ())
    else:
        _interrupted = True  # the agent sends one; another's does not cut off what the script still does
        _thread.interrupt_main()  # as Ctrl-C; raised where the script stands


def _pass_over(number: int, frame: FrameType | None) -> None:
    pass


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
    stop_file = _open_stop_file()
    if stop_file is None:
        return False
    try:
        return stop_file.interrupts
    finally:
        stop_file.close()


def stop_is_asked() -> bool:
    """Whether the run is being stopped; waits for the agent, which may get the same signal a little later."""
    stop_file, until = _open_stop_file(), time.monotonic() + _STOP_IS_KNOWN_S
    if stop_file is None:
        return False
    try:
        while not stop_file.stop and time.monotonic() < until:
            time.sleep(_AGAIN_S)
        return stop_file.stop != 0
    finally:
        stop_file.close()


def _note_passed_over() -> None:
    """Tell the agent that the script has not seen this signal: a handler that it installs now has not run."""
    stop_file = _open_stop_file()
    if stop_file is not None:
        try:
            stop_file.write_sigterm_passed_over(int(os.environ.get("LOCAL_RANK", "0")))
        finally:
            stop_file.close()


def _open_stop_file() -> StopFile | None:
    path = os.environ.get(env.STOP_FILE)
    try:
        return StopFile.open(Path(path)) if path else None
    except OSError:
        return None


def _before_fork() -> None:
    # A signal that comes before the child has put back its own handling waits until then.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _in_forking_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_forked_child(protect_all: bool) -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forking = sys._getframe(2)
    # Not the forks of what multiprocessing's own process calls, nor those before an exec.
    if forking.f_globals.get("__name__") in _FORKING_MODULES:
        loader = _starts_loader_worker(forking)
        if loader or protect_all:
            child_signals.obey_only(os.getppid(), or_its_session=not loader)  # it stays blocked
            return
    signal.pthread_sigmask(signal.SIG_SETMASK, child_signals.leave_protection(_forking.mask))


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
