"""The terminal while a job runs: output scrolls, the panel stays below it.

stdout and stderr of the command, and of every process that it starts, are redirected into a pipe; a thread
writes the pipe's content above the panel. The cursor is never hidden and stays below the panel, so that the
terminal is usable however the command ends (kill -9 included).
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from dist_train.cli.live.display_mode import in_front
from dist_train.cli.live.suspend import suspended_within

Paint = Callable[[int, int], Sequence[str]]
Shows = Callable[[str], bool]

_EVERY_S = 0.5
_CHUNK = 65536
_PIPE_BYTES = 1 << 20
_COLUMNS, _ROWS = 80, 24
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Escape sequences (CSI, OSC, others), then every control character but tab.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)


class Screen:
    """Draws the panel below the redirected output.

    Args:
        paint: (columns, rows) -> the panel's lines, none wider than the columns; None draws no panel.
        shows: whether a line of the output is shown.
        captured: descriptors of this process to redirect; the last of them is the terminal.
    """

    def __init__(
        self, paint: Paint | None, shows: Shows = lambda line: True, captured: Sequence[int] = (1, 2)
    ) -> None:
        self._paint = paint
        self._shows = shows
        self._before = {descriptor: os.dup(descriptor) for descriptor in captured}
        self._terminal = self._before[captured[-1]]
        self._drawn: list[int] = []  # how many cells each line of the panel takes
        self._text = ""
        self._rest = bytearray()  # of a line that has not ended
        self._rest_since = 0.0
        self._begun = False  # without a panel: the begin of an unfinished line is on the terminal
        self._over = threading.Event()
        self._drawing = threading.RLock()
        self._suspended = suspended_within(self._cleared)
        self._chunk = b""
        self._read, self._write = os.pipe()
        _enlarge(self._write)
        self._thread = threading.Thread(target=self._loop, name="screen", daemon=True)

    def __enter__(self) -> Self:
        _flush()
        for descriptor in self._before:
            os.dup2(self._write, descriptor)
        self._thread.start()
        self._suspended.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the descriptors, print the rest of the pipe, remove the panel."""
        _flush()
        for descriptor, before in self._before.items():
            os.dup2(before, descriptor)
        self._over.set()
        os.close(self._write)
        self._thread.join()
        self._suspended.__exit__(None, None, None)
        os.close(self._read)
        for before in self._before.values():
            os.close(before)

    def _loop(self) -> None:
        next_at = 0.0
        while not self._over.is_set():
            wait_s = max(0.0, next_at - time.monotonic())
            if self._take(min(wait_s, _EVERY_S / 5)):
                self._draw(self._whole_lines())
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + _EVERY_S
                self._pass_unfinished()
                self._draw([])
        # All writers have ended or write to the terminal again: the rest of the pipe is all.
        while self._take(0.0):
            self._draw(self._whole_lines())
        ends_painting, self._paint = self._paint is not None, None
        rest = bytes(self._rest)
        self._draw([rest] if rest and (ends_painting or not self._begun) else [])
        if self._begun and not ends_painting:
            self._put(rest)

    def _take(self, wait_s: float) -> bool:
        """Read from the pipe, for at most this time; return whether something came."""
        if not select.select([self._read], [], [], wait_s)[0]:
            return False
        self._chunk = os.read(self._read, _CHUNK)
        return bool(self._chunk)

    def _whole_lines(self) -> list[bytes]:
        """Return the lines that have ended with the last chunk; linear in its size."""
        if not self._rest:
            self._rest_since = time.monotonic()
        *lines, rest = self._chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if self._begun and lines:
            self._put(lines.pop(0) + b"\n")
            self._begun = False
        if self._paint is not None:
            # What a carriage return has overwritten never shows; the last one may be half of \r\n.
            if (end := self._rest.rfind(b"\r", max(0, len(self._rest) - len(rest) - 1), -1)) >= 0:
                del self._rest[: end + 1]
            if len(self._rest) >= _CHUNK:
                lines.append(bytes(self._rest))
                self._rest.clear()
        return lines

    def _unfinished(self) -> str:
        """What is shown of a line whose end does not come."""
        if not self._rest or time.monotonic() - self._rest_since < _EVERY_S:
            return ""
        return _CONTROL.sub("", readable(self._rest.decode(errors="replace")))

    def _pass_unfinished(self) -> None:
        """Without a panel: write the begin of a line whose end does not come."""
        text = self._unfinished() if self._paint is None and not self._drawn else ""
        if text and (self._begun or self._shows(text)):
            self._put(bytes(self._rest))
            self._begun = True
            self._rest.clear()

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """Remove the panel; nothing draws inside."""
        with self._drawing:
            self._put(self._erase(self._size()[0]))
            self._text, self._drawn = "", []
            yield

    def _draw(self, lines: Sequence[bytes]) -> None:
        """Write lines in place of the panel, and the panel again below them."""
        with self._drawing:
            self._draw_alone(lines)

    def _draw_alone(self, lines: Sequence[bytes]) -> None:
        shown = [line for line in (raw.decode(errors="replace") for raw in lines) if self._shows(line)]
        columns, rows = self._size()
        panel = self._panel(columns, rows)
        if not shown and panel == self._text.split("\n")[:-1] and self._fits(columns):
            return
        draws = self._paint is not None or bool(self._drawn)
        above = "".join(f"{readable(line) if draws else line}\n" for line in shown)
        text = "".join(f"{line}\n" for line in panel)
        self._put(f"{self._erase(columns)}{above}{text}")
        self._text, self._drawn = text, [cells(line) for line in panel]

    def _panel(self, columns: int, rows: int) -> list[str]:
        if self._paint is None or not in_front(self._terminal):
            return []
        try:
            lines = list(self._paint(columns, rows))
        # An error in the panel must not stop the job's output.
        except Exception as error:
            self._paint = None
            lines = []
            self._put(
                f"{self._erase(columns)}[dist-train] the live view failed, plain output goes on: {error!r}\n"
            )
            self._drawn = []
        if unfinished := self._unfinished():
            lines.insert(0, clipped(unfinished, columns))
        return lines[: max(0, rows - 1)]

    def _fits(self, columns: int) -> bool:
        return all(width <= columns for width in self._drawn)

    def _erase(self, columns: int) -> str:
        """Escape codes that clear the panel; after a resize a line may take several rows."""
        rows = sum(max(1, -(-width // columns)) for width in self._drawn)
        return f"\r\x1b[{rows}A\x1b[J" if rows else ""

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._terminal)
        except OSError:
            return _COLUMNS, _ROWS
        return size.columns or _COLUMNS, size.lines or _ROWS

    def _put(self, text: str | bytes) -> None:
        left = memoryview(text.encode(errors="replace") if isinstance(text, str) else text)
        while left:
            try:
                left = left[os.write(self._terminal, left) :]
            except BlockingIOError:
                select.select([], [self._terminal], [], 1.0)
            except OSError:
                return  # the terminal is gone; the log files have every line


def readable(line: str) -> str:
    """A line without control characters that move the cursor; colours are kept.

    Of text overwritten by carriage returns (a progress bar) the last part is kept.
    """
    line = line.rstrip("\r").rpartition("\r")[2]
    coloured = _COLOUR.search(line) is not None
    kept = _CONTROL.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else "", line)
    return f"{kept}\x1b[0m" if coloured else kept


def clipped(line: str, columns: int) -> str:
    """The begin of a line of plain text, as much as fits."""
    line = line[:columns]
    while cells(line) > columns:
        line = line[:-1]
    return line


def cells(line: str) -> int:
    """The number of columns of a line."""
    from rich.cells import cell_len

    return cell_len(_CONTROL.sub("", line))


def _enlarge(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the limit on this user's pipes


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed at the start
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
