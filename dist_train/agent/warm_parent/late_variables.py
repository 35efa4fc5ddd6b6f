"""Say it where a forked rank sets a variable that is read while torch is imported: that was before its fork.

The script's own text is searched before the fork (spawn_reason); a module that it imports is not.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

from dist_train.prewarm.early_variables import is_read_at_import


def watch_late_variables() -> None:
    """Print a line on stderr for each such variable that is set from now on, unless torch sets it."""
    put, said = os.putenv, set[str]()

    def putenv(name: bytes, value: bytes) -> None:
        text = os.fsdecode(name)
        changes = os.environb.get(name) != value
        put(name, value)
        if changes and is_read_at_import(text) and text not in said and not _in_torch(sys._getframe(1)):
            said.add(text)
            print(
                f"[dist-train] {text} is set after torch was imported for this rank, and has no effect; "
                f"`launch --env {text}=…` sets it before, and --env DIST_TRAIN_START_METHOD=spawn lets each "
                "rank import torch itself",
                file=sys.stderr,
                flush=True,
            )

    setattr(os, "putenv", putenv)  # noqa: B010 - what os.environ calls


def _in_torch(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "torchgen"):
            return True
        frame = frame.f_back
    return False
