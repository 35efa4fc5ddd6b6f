"""Measure one call in a process of its own: wall and processor time, and the peak of memory."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Body = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """One run of a case."""

    wall: float
    cpu: float
    peak: float  # bytes above what the process had before


def in_child(prepare: Callable[[], Body]) -> Measured | None:
    """Fork; prepare, then run and measure what `prepare` returned. None where it fails."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body = prepare()
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = _status("VmRSS")
            wall, cpu = time.perf_counter(), time.process_time()
            body()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            os.write(write_end, json.dumps([wall, cpu, _status("VmHWM") - before]).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return Measured(*json.loads(answer)) if status == 0 else None


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)
