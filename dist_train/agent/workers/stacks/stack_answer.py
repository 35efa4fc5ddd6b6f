"""In a rank: write the Python stacks of all threads when the agent asks, without touching the training.

faulthandler alone would not do: its handler walks the frames of threads that run meanwhile. A thread that
waits in sigwait reads them while it holds the interpreter's lock; it costs nothing until it is asked. Where
C code holds the lock, so that this thread gets no turn, no frame can change either, and then the agent asks
faulthandler. Both write to a file in memory of this process, which the agent opens by /proc.

Nothing is imported in the thread, nor opened by what might import a codec: sys.modules must not change while
the script goes through it.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import sys
import threading
from types import FrameType

# Real-time signals, of which neither Slurm nor a library sends one. The first is sent to one thread alone,
# which has blocked it: no mask of the process or of what it starts is changed.
ASK = signal.SIGRTMIN + 4
ASK_FAULTHANDLER = signal.SIGRTMIN + 5
FILE_NAME = "dist-train-stacks"
THREAD_NAME = b"dt-stacks"  # as the kernel knows it, which keeps 15 letters
END = b"end of stacks\n"
_AGENT = os.path.join("dist_train", "agent", "")
_file: int | None = None  # open as long as the process lives


def answer_stack_requests() -> None:
    """Begin to answer; called once, in the main thread."""
    global _file
    try:
        _file = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
    except OSError:
        return  # a sandbox without it: the agent says that this rank does not answer
    # After the agent has emptied the file, faulthandler's text begins at its start.
    _append(_file)
    faulthandler.register(ASK_FAULTHANDLER, file=_file, all_threads=True, chain=False)
    # Not by `threading`: scripts count and list their threads.
    _thread.start_new_thread(_answer, (_file,))


def stacks_text(but: int) -> str:
    """The stacks of all threads, the innermost call last, the main thread first.

    Args:
        but: the thread that asks.
    """
    # Not threading.enumerate(), which takes a lock that another thread may hold.
    names = {ident: thread.name for ident, thread in threading._active.copy().items()}  # type: ignore[attr-defined]
    main = threading.main_thread().ident
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != but}
    parts = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident)):
        if calls := _calls(frames[ident]):
            parts.append(f"Thread {names.get(ident, 'without a name')}:\n{calls}")
    return "".join(parts)


def _calls(frame: FrameType | None) -> str:
    """Outermost first, without the agent's own, which begin every rank.

    No line of source: to read it is the agent's work.
    """
    lines = []
    while frame is not None:
        code = frame.f_code
        if not (code.co_filename.startswith("<frozen runpy") or _AGENT in code.co_filename):
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n')
        frame = frame.f_back
    return "".join(reversed(lines))


def _answer(file: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {ASK})  # by default it would end the process
    try:
        comm = os.open(f"/proc/self/task/{_thread.get_native_id()}/comm", os.O_WRONLY)
        os.write(comm, THREAD_NAME)
        os.close(comm)
    except OSError:
        return  # nobody finds it, so that nobody asks
    own = _thread.get_ident()
    while True:
        signal.sigwait({ASK})
        try:
            text = stacks_text(own)
        except Exception as error:  # a thread that ends meanwhile
            text = f"{type(error).__name__}: {error}\n"
        try:
            os.write(file, text.encode(errors="replace") + END)
        except OSError:  # a full disk: the agent names the rank as one that gave no answer
            pass


def _append(file: int) -> None:
    import fcntl

    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
