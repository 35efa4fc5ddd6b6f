"""The ranks' output: what is shown on the terminal, and the log file of each rank.

Rank 0's stdout as it is; every rank's stderr as `[rank 3 host] …`, where the same line from several
ranks within a second is shown once as `[ranks 1-3 host] …`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from dist_train.rundir.name_ranks import name_ranks

_FOLD_S = 1.0
_FLUSH_S = 1.0
_FLUSH_BYTES = 64 * 1024


class RankLog:
    """The file logs/attempt-<k>/rank-<r>.log: appended to, flushed at 1 s or 64 KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._buffer = bytearray()
        self._flushed_at = time.monotonic()

    def write(self, line: bytes) -> None:
        """Append one line (without its newline)."""
        self._buffer += line + b"\n"
        if len(self._buffer) >= _FLUSH_BYTES or time.monotonic() - self._flushed_at >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the buffer; on a full disk its lines are dropped, so that the agent goes on."""
        self._flushed_at = time.monotonic()
        if self._descriptor is not None and self._buffer:
            try:
                os.write(self._descriptor, self._buffer)
            except OSError:
                pass
        self._buffer.clear()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass
class _Held:
    """A line of stderr that waits for the same line of other ranks."""

    number: int
    text: str
    at: float
    ranks: set[int]


class RankOutput:
    """This node's output on the terminal.

    Args:
        show_ranks: ranks whose stdout is shown: "0", "all", "0,3".
    """

    def __init__(
        self, host: str, show_ranks: str = "0", out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._host = host
        self._show = None if show_ranks == "all" else {int(r) for r in show_ranks.split(",") if r.strip()}
        self._prefix_stdout = self._show is None or len(self._show) > 1
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._held: deque[_Held] = deque()
        self._next_number = 0
        self._last: dict[int, int] = {}
        self._logs: list[RankLog] = []
        self._lock = threading.Lock()

    def attach(self, logs: list[RankLog]) -> None:
        """Set the logs that `tick` flushes too."""
        self._logs = logs

    def line(self, rank: int, is_stderr: bool, text: str) -> None:
        """Show one line of a rank's output."""
        with self._lock:
            if is_stderr:
                self._hold(rank, text)
            elif self._show is None or rank in self._show:
                prefix = f"[rank {rank} {self._host}] " if self._prefix_stdout else ""
                self._print(self._out, prefix + text)

    def note(self, text: str) -> None:
        """Print a line of the agent's own, on stderr."""
        with self._lock:
            self._print(self._err, f"[dist-train {self._host}] {text}")

    def tick(self) -> None:
        """Show the lines that were held long enough, flush the logs."""
        with self._lock:
            self._release(time.monotonic())
        for log in self._logs:
            log.flush()

    def flush(self) -> None:
        """Show all lines that are held."""
        with self._lock:
            self._release(float("inf"))

    def _hold(self, rank: int, text: str) -> None:
        # Fold into the same line of another rank, but keep this rank's own order.
        after = self._last.get(rank, -1)
        held = next((h for h in self._held if h.text == text and h.number > after), None)
        if held is None:
            held = _Held(self._next_number, text, time.monotonic(), set())
            self._next_number += 1
            self._held.append(held)
        held.ranks.add(rank)
        self._last[rank] = held.number

    def _release(self, now: float) -> None:
        while self._held and now - self._held[0].at >= _FOLD_S:
            held = self._held.popleft()
            self._print(self._err, f"[{name_ranks(held.ranks)} {self._host}] {held.text}")

    def _print(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the log files have every line
