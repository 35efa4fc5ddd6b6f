"""A rank's way out: the interpreter's own end, marked in the stop file so that the agent can bound it.

What can hang or crash there is torch's. A DDP object that is freed after destroy_process_group() holds
the last reference to the group, whose destructor joins gloo's threads while it holds the interpreter's
lock; the destructor of a gloo group waits for collectives that no peer will join. Both are kept for
ever, as in a process that ends by os._exit: everything else is finalized. If the interpreter's end
still hangs or crashes, the agent ends it and keeps the script's exit code (exit_watchdog, processes);
files were flushed before.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import faulthandler
import gc
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dist_train import env
from dist_train.agent.warm_parent.shared_modules import SharedModules
from dist_train.agent.workers.signals.rank_signals import script_handles_sigterm
from dist_train.distributed.group_teardown.living_objects import living_objects
from dist_train.rundir.stop_file import StopFile
from dist_train.rundir.times.span_clock import span_clock

_HEARTBEAT_S = 1.0


# What runs after all other exit functions.
_at_the_end: list[Callable[[], None]] = []
_reserved: list[bool] = []


def reserve_exit_function() -> None:
    """Register now what is to run last; a process that may fork ranks does so before it imports."""
    if not _reserved:
        _reserved.append(True)
        atexit.register(_run_last)


def run_last(function: Callable[[], None]) -> None:
    """Call it after all exit functions, also those that were registered later."""
    _at_the_end.append(function)


def _run_last() -> None:
    for function in _at_the_end:
        function()


class InterpreterExit:
    """Marks how far this rank is on its way out; without a stop file it only flushes and keeps.

    Args:
        stop_file: the node's stop file, or None.
        local_rank: this rank's slot there.
        shared: what a forked rank shares with its parent.
    """

    def __init__(
        self, stop_file: StopFile | None, local_rank: int, shared: SharedModules | None = None
    ) -> None:
        self._shared = shared
        self._stop_file = stop_file
        self._local_rank = local_rank
        self._pid = os.getpid()
        self._exit_code: int | None = None

    @classmethod
    def watch(cls, environ: Mapping[str, str], shared: SharedModules | None = None) -> InterpreterExit:
        """Register the exit function and start the heartbeats; call it before all other code."""
        path = environ.get(env.STOP_FILE)
        stop_file = StopFile.open(Path(path)) if path else None
        found = cls(stop_file, int(environ.get("LOCAL_RANK", "0")), shared)
        run_last(found._before_finalization)
        reserve_exit_function()
        if stop_file is not None:
            # Not by `threading`: scripts count and list their threads.
            _thread.start_new_thread(found._beat, ())
        return found

    def script_ended(self, exit_code: int) -> None:
        """Mark that the script has ended: what follows is threads, exit functions, the interpreter's end."""
        self._exit_code = exit_code
        if self._stop_file is not None:
            self._stop_file.write_sigterm_handled(self._local_rank, script_handles_sigterm())
        self._mark(finalizing=False)

    def _beat(self) -> None:
        assert self._stop_file is not None
        heartbeats = 0
        while True:
            heartbeats += 1
            self._stop_file.write_heartbeats(self._local_rank, heartbeats)
            self._stop_file.write_sigterm_handled(self._local_rank, script_handles_sigterm())
            span_clock().beat()
            time.sleep(_HEARTBEAT_S)

    def _before_finalization(self) -> None:
        """Run after all other exit functions: after it only the interpreter's own end is left."""
        flush_files()
        keep_process_groups()
        if self._stop_file is not None:
            # A deadline of the exit functions would end the process with 1; the agent keeps the code.
            faulthandler.cancel_dump_traceback_later()
        self._mark(finalizing=True)
        # A child that the script has forked ends as the interpreter does.
        if self._shared is not None and self._exit_code is not None and os.getpid() == self._pid:
            self._shared.end(self._exit_code)

    def _mark(self, *, finalizing: bool) -> None:
        # A child that a script has forked inherits this object; the slot is the rank's own.
        if self._stop_file is not None and self._exit_code is not None and os.getpid() == self._pid:
            self._stop_file.write_exit(self._local_rank, self._exit_code, finalizing=finalizing)


def flush_files() -> None:
    """Flush every open file of Python: they are safe then, whatever the interpreter's end does.

    Only plain files. A compressing one would write other bytes than without the flush.
    """
    for found in gc.get_objects():
        if _is_plain_file(found):
            try:
                found.flush()
            except (OSError, ValueError):
                pass  # the interpreter's own flush fails too, and reports it


def _is_plain_file(found: Any) -> bool:
    kind = type(found)
    if kind is io.TextIOWrapper:
        found = found.buffer
    elif kind not in (io.BufferedWriter, io.BufferedRandom):
        return False
    try:
        return type(found) in (io.BufferedWriter, io.BufferedRandom) and type(found.raw) is io.FileIO
    except ValueError:  # detached
        return False


def keep_process_groups() -> int:
    """Never free DDP reducers and gloo groups that are still there; return how many were kept."""
    kept = [*_reducers(), *_gloo_groups()]
    for each in kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    return len(kept)


def _reducers() -> list[object]:
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:
        return []
    living = living_objects(parallel.DistributedDataParallel)
    held = [module.__dict__.get(name) for module in living for name in ("reducer", "logger")]
    return [each for each in held if each is not None]


def _gloo_groups() -> list[object]:
    """Groups that torch has not destroyed. NCCL's own destructor aborts and is bounded: it may run."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return []
    return [group for group in world.pg_map if "nccl" not in str(world.pg_backend_config.get(group, ""))]
