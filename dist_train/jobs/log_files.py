"""A run's log files by rank and attempt, also while they grow.

A line is what a terminal shows of it: of a progress bar its last state. While a log grows, the present state
of a line that has not ended is given now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dist_train.errors import NotFoundError
from dist_train.rundir import RunDir
from dist_train.rundir.display_number import display_number
from dist_train.rundir.log_text.log_parts import find_parts, part_path
from dist_train.rundir.log_text.output_stream import OutputStream

_POLL_S = 0.2
_CHUNK = 1 << 20
_LONGEST_LINE = 16 << 20


def follow_logs(
    run: RunDir, rank: int | None, attempt: int | None, follow: bool, alive: Callable[[], bool]
) -> Iterator[str]:
    """Yield the lines of one rank's log, or of every rank's with the prefix `[rank 3]`.

    Args:
        attempt: counts from 0, as the folders do; None: the newest.
        follow: go on, into later attempts too, until `alive()` is false and all is read.

    Raises:
        NotFoundError: the rank or attempt has no log (66).
    """
    readers: dict[tuple[int, int], _LogReader] = {}
    first = attempts(run)[-1:] or [0]
    while True:
        running = follow and alive()
        # Also the attempts before the newest: their lines since the last poll are often the traceback.
        wanted = [number for number in attempts(run) if number >= first[0]] if attempt is None else [attempt]
        logs = [
            (number, of, parts)
            for number in wanted
            for of, parts in find_parts(run.attempt_logs(number)).items()
            if rank in (None, of)
        ]
        if not logs and not running:
            shown = [display_number(number) for number in attempts(run)]
            raise NotFoundError(
                f"{run.logs} has no log of {'any rank' if rank is None else f'rank {rank}'}"
                + ("" if attempt is None else f" in attempt {display_number(attempt)}"),
                cause=f"attempts with logs: {', '.join(map(str, shown)) or 'none'}",
            )
        for number, of, parts in logs:
            reader = readers.setdefault((number, of), _LogReader(run.attempt_logs(number), of))
            for line in reader.read(parts, over=not running):
                yield line if rank is not None else f"[rank {of}] {line}"
        if not running:
            return
        time.sleep(_POLL_S)


def attempts(run: RunDir) -> list[int]:
    """Attempts that have logs, ascending."""
    if not run.logs.is_dir():
        return []
    numbers = (folder.name.removeprefix("attempt-") for folder in run.logs.glob("attempt-*"))
    return sorted(int(number) for number in numbers if number.isdigit())


class _LogReader:
    """Reads the log of one rank from part to part."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._part = 0
        self._offset = 0
        self._stream = OutputStream(_LONGEST_LINE)

    def read(self, parts: list[int], over: bool) -> Iterator[str]:
        """Yield what is new; `over`: nothing more is written, so that an unfinished line is one."""
        for part in parts:
            if part < self._part:
                continue
            if part > self._part:
                if part > self._part + 1:
                    self._stream.finish()
                    yield from self._lines()
                    yield _left_out(range(self._part + 1, part))
                self._part, self._offset = part, 0
            yield from self._new_lines()
        if over:
            self._stream.finish()
            yield from self._lines()
        elif state := self._stream.due(time.monotonic()):
            yield state.decode(errors="replace")

    def _new_lines(self) -> Iterator[str]:
        try:
            file = part_path(self._folder, f"rank-{self._rank}", self._part).open("rb")
        except FileNotFoundError:
            return  # removed since the folder was listed
        with file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK):
                self._offset += len(chunk)
                self._stream.feed(chunk, time.monotonic())
                yield from self._lines()

    def _lines(self) -> Iterator[str]:
        lines, self._stream.lines = self._stream.lines, []
        for line in lines:
            yield line.decode(errors="replace")


def _left_out(parts: range) -> str:
    named = f"part {parts[0]} is" if len(parts) == 1 else f"parts {parts[0]}-{parts[-1]} are"
    return f"[dist-train] {named} left out here: this log had reached its limit (launch --log-limit)"
