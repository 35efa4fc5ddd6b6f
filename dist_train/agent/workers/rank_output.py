"""The ranks' output as it is shown on the terminal.

Rank 0's stdout as it is; every rank's stderr as `[rank 3 host] …`, where the same line from several
ranks within a second is shown once as `[ranks 1-3 host] …`. Nothing here waits for the terminal's reader.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TextIO

from dist_train.jobs.terminal_writer import TerminalWriter, same_file
from dist_train.rundir.name_ranks import name_ranks

_FOLD_S = 1.0
_MOST_HELD = 1000  # lines that wait for the same of other ranks
STOPPED_READER_S = 5.0  # at the end: how long for a reader that takes nothing


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
        self._err_writer = TerminalWriter(self._note_dropped, self.note)
        one_terminal = same_file(self._out, self._err)
        self._out_writer = self._err_writer if one_terminal else TerminalWriter(self._note_dropped, self.note)
        self._held: deque[_Held] = deque()
        self._held_of: dict[str, list[_Held]] = {}
        self._noted: set[str] = set()
        self._left_is_said = False
        self._next_number = 0
        self._last: dict[int, int] = {}
        self._lock = threading.Lock()

    def shows(self, rank: int, is_stderr: bool) -> bool:
        """Whether this stream is shown at all."""
        return is_stderr or self._show is None or rank in self._show

    def passes_on(self, rank: int, is_stderr: bool) -> bool:
        """Whether this stream is shown byte for byte, by `pass_on`, and not by lines."""
        return not is_stderr and not self._prefix_stdout and self.shows(rank, False)

    def pass_on(self, data: bytes) -> None:
        """Show bytes of a rank's stdout as they are."""
        self._out_writer.put(self._out, data)

    def line(self, rank: int, is_stderr: bool, text: str) -> None:
        """Show one line of a rank's output."""
        with self._lock:
            if is_stderr:
                self._hold(rank, text)
            elif self.shows(rank, False):
                prefix = f"[rank {rank} {self._host}] " if self._prefix_stdout else ""
                self._out_writer.put(self._out, _encoded(prefix + text))

    def note(self, text: str) -> None:
        """Print a line of the agent's own, on stderr."""
        self.report(f"[dist-train {self._host}] {text}")

    def note_once(self, text: str) -> None:
        """As `note`, unless the same has been said: what several ranks meet is said once."""
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def note_left_running(self, who: str, program: str) -> None:
        """Say that a program which a script had left running was ended with it: of the first one alone.

        Args:
            who: whose it was.
            program: its command line.
        """
        if not self._left_is_said:
            self._left_is_said = True
            self.note(
                f"{who} has left a process running, ended with it: {program} (wait for it in the script)"
            )

    def report(self, text: str) -> None:
        """Print lines of the agent's own without a prefix, on stderr."""
        self._err_writer.put(self._err, _encoded(text), always=True)

    @property
    def is_behind(self) -> bool:
        """Whether the terminal takes the output, but more slowly than it comes."""
        return self._out_writer.is_behind or self._err_writer.is_behind

    def tick(self) -> None:
        """Show the lines that were held long enough."""
        with self._lock:
            self._release(time.monotonic())

    def flush(self) -> None:
        """Show all lines that are held."""
        with self._lock:
            self._release(float("inf"))

    def close(self, stopped_s: float = STOPPED_READER_S) -> int:
        """Show all that is left, unless the terminal takes nothing for this long; say so where one does.

        Returns:
            How many lines were not shown.
        """
        self.flush()
        left = self._out_writer.close(stopped_s)
        if self._out_writer is self._err_writer:
            return left
        if left:
            self._note_dropped(left)
        return left + self._err_writer.close(stopped_s)

    def _note_dropped(self, count: int) -> None:
        self.note(
            f"{count} lines of output were not shown: the terminal's reader had stopped; the log files have "
            "every line (dist-train logs)"
        )

    def _hold(self, rank: int, text: str) -> None:
        # Fold into the same line of another rank, but keep this rank's own order.
        after = self._last.get(rank, -1)
        same = self._held_of.setdefault(text, [])
        first_after = bisect_right(same, after, key=lambda held: held.number)
        if first_after < len(same):
            held = same[first_after]
        else:
            held = _Held(self._next_number, text, time.monotonic(), set())
            self._next_number += 1
            self._held.append(held)
            same.append(held)
        held.ranks.add(rank)
        self._last[rank] = held.number
        while len(self._held) > _MOST_HELD:
            self._release_first()

    def _release(self, now: float) -> None:
        while self._held and now - self._held[0].at >= _FOLD_S:
            self._release_first()

    def _release_first(self) -> None:
        held = self._held.popleft()
        same = self._held_of[held.text]
        same.pop(0)
        if not same:
            del self._held_of[held.text]
        self._print_line(f"[{name_ranks(held.ranks)} {self._host}] {held.text}")

    def _print_line(self, text: str) -> None:
        self._err_writer.put(self._err, _encoded(text))


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode(errors="replace")
