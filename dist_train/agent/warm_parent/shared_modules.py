"""The end of a forked rank: its own modules are finalized, those that it shares with its siblings are not.

The interpreter's end goes through every module, and the C library's exit through every operator of torch. In
a fork that copies each page of what torch's import has made (47,000 page faults, 0.3 s of a core and 190 MB
per rank), only to free it. What the program has made is finalized as the interpreter does it, then the
process leaves by _exit(2), as forks of multiprocessing do; where it has loaded libraries of its own by
exit(3), which runs their exit functions.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

_STREAMS = ("stdin", "stdout", "stderr")
# As finalize_modules_delete_special() in pylifecycle.c: they may hold frames, and so the program's objects.
_LAST = ("last_type", "last_value", "last_traceback")


@dataclass(frozen=True)
class SharedModules:
    """What a forked rank shares with its parent.

    Attributes:
        names: in sys.modules.
        libraries: paths of the shared objects that are loaded.
    """

    names: frozenset[str]
    libraries: frozenset[str]

    @classmethod
    def of_this_process(cls) -> SharedModules:
        """Everything that is loaded now, before the program begins."""
        return cls(frozenset(sys.modules), _libraries())

    def end(self, exit_code: int) -> None:
        """Finalize what the program has made, and end the process; returns where the interpreter must end it.

        That is where a thread of the program still runs: the interpreter lets none go on while it finalizes.
        Where output cannot be flushed, the interpreter's own end fails too, and says it by its exit code.
        """
        if _threads_of_the_program(self.names):
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            return
        _drop_exit_functions()
        _drop_signal_handlers()
        _finalize_modules(self.names)
        _finalize_objects()
        _close_files()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the program may have detached it
                stream.flush()
        # With the interpreter's lock held: no other thread of Python runs on into freed memory.
        libc = ctypes.PyDLL(None)
        if all(path.startswith(self._known_folders()) for path in _libraries() - self.libraries):
            libc.fflush(None)
            os._exit(exit_code)
        libc.exit(exit_code)

    def _known_folders(self) -> tuple[str, ...]:
        """Where the interpreter and the shared packages load further parts of themselves from."""
        folders = {Path(path).parent for path in self.libraries}
        own = [
            folder
            for folder in folders
            if folder.name == "lib-dynload" or "site-packages" in folder.parent.parts
        ]
        return tuple(f"{folder}/" for folder in own)


def forget_finalizers() -> None:
    """Leave out of the exit what was to be finalized in the parent, such as torch's registries of operators.

    multiprocessing does likewise with its own in a fork (BaseProcess._bootstrap).
    """
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False


def _libraries() -> frozenset[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        fields = [line.split(maxsplit=5) for line in file]
    return frozenset(f[5].rstrip() for f in fields if len(f) == 6 and "x" in f[1] and f[5].startswith("/"))


def _threads_of_the_program(shared: Collection[str]) -> bool:
    """Whether a thread runs, or waits to run, what is not dist_train's own."""
    own = _thread.get_ident()
    return any(not _is_own(frame, shared) for thread, frame in sys._current_frames().items() if thread != own)


def _is_own(frame: FrameType | None, shared: Collection[str]) -> bool:
    """Whether dist_train has started this thread, and nothing of the program is on its stack."""
    found = False
    while frame is not None:
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if top not in shared or top == "__main__":
            return False
        found = found or top == "dist_train"
        frame = frame.f_back
    return found


def _drop_exit_functions() -> None:
    """Free what only exit functions refer to; they have run, and this one is the last."""
    atexit._clear()


def _drop_signal_handlers() -> None:
    """Give every signal with a handler its default, and free the handler, as the interpreter does first."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _finalize_modules(shared: Collection[str]) -> None:
    """Drop the program's modules, then clear those that something refers to, the newest first."""
    names = [name for name in sys.modules if name == "__main__" or name.partition(".")[0] not in shared]
    found = [weakref.ref(sys.modules[name]) for name in names if isinstance(sys.modules[name], ModuleType)]
    for name in _STREAMS:
        stream, original = getattr(sys, name, None), getattr(sys, f"__{name}__")
        if stream is not original:
            with suppress(Exception):
                stream.flush()  # type: ignore[union-attr]
            setattr(sys, name, original)
    for name in _LAST:
        vars(sys).pop(name, None)
    # A collection finalizes garbage in the order of its list. This one, as the interpreter's first, brings
    # what refers to others before them: else the file below a buffer is closed before the buffer is written.
    gc.collect()
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment] # a finalizer must not import it once more
    gc.collect()
    for reference in reversed(found):
        living = reference()
        if living is not None:
            _clear(living)
    gc.collect()


def _clear(module: ModuleType) -> None:
    """Drop a module's globals as _PyModule_Clear() does: names with one underscore first, builtins never."""
    content = vars(module)
    for private in (True, False):
        for name in list(content):
            if name != "__builtins__" and (name.startswith("_") and not name.startswith("__")) == private:
                content[name] = None


def _finalize_objects() -> None:
    """Call the finalizers of objects that shared modules still refer to: a zip file is not whole before."""
    for each in reversed(gc.get_objects()):
        finalizer = getattr(type(each), "__del__", None)
        if isinstance(finalizer, FunctionType):
            try:
                finalizer(each)
            except Exception:  # as the interpreter says it, which goes on too
                print(f"Exception ignored in: {finalizer!r}", file=sys.stderr)
                traceback.print_exc()


def _close_files() -> None:
    """Close files of the program that shared modules refer to: a compressed one is not whole before."""
    kept = {id(layer) for name in _STREAMS for layer in _layers(getattr(sys, name))}
    files = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase) and id(each) not in kept]
    for each in sorted(files, key=_height, reverse=True):
        with suppress(Exception):  # the interpreter says nothing of a file that cannot be closed at its end
            each.close()


def _height(file: io.IOBase) -> int:
    """The one that writes into another comes before it."""
    if isinstance(file, io.RawIOBase):
        return 0
    if type(file).__module__ == "_io" and isinstance(file, io.BufferedIOBase):
        return 1
    return 3 if isinstance(file, io.TextIOBase) else 2


def _layers(stream: Any) -> list[Any]:
    """A stream of text, its buffer, and the file below."""
    buffer = getattr(stream, "buffer", None)
    return [stream, buffer, getattr(buffer, "raw", None)]
