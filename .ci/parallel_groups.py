"""Run commands, some at once, and print what each says as one block in the given order.

One group of tests leaves cores idle: at its beginning, at its end, and while its tests wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import psutil

# After Ctrl-C: pytest gives its workers 60 s to take down their fixtures, clusters among them.
END_S = 90.0
_POLL_S = 0.05
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Part:
    """One command.

    Args:
        name: printed with its exit.
        argv: what is run.
        kind: of one kind, so many run at once as `run_parts` is told.
        alone: none of its kind runs meanwhile, and those after it begin later.
        environ: variables that are set for it.
        limit_s: it is killed with its descendants when this time has passed.
    """

    name: str
    argv: Sequence[str]
    kind: str
    alone: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 2700.0


@dataclass(frozen=True)
class Ended:
    """How a part has ended: its exit code, the seconds that it took, the end of what it has written."""

    code: int
    seconds: float
    output: str


@dataclass
class _Running:
    part: Part
    output: IO[bytes]
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    printed: int = 0
    ended: Ended | None = None

    def look(self) -> None:
        """Note its end; end it past its limit."""
        if self.ended is not None:
            return
        seconds = time.monotonic() - self.began
        if self.process.poll() is None and seconds > self.part.limit_s:
            self.output.write(f"[make] not done after {self.part.limit_s:.0f} s: ended\n".encode())
            self.kill()
        if self.process.returncode is not None:
            self.ended = Ended(self.process.returncode, seconds, self._tail())

    def kill(self) -> None:
        """Kill it with all its descendants."""
        try:
            descendants = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            descendants = []
        self.process.kill()  # first: once they have ended it might leave with a code of its own
        for each in descendants:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def print_more(self) -> None:
        """Print what it has written since the last call."""
        while chunk := os.pread(self.output.fileno(), _CHUNK, self.printed):
            self.printed += len(chunk)
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()

    def _tail(self) -> str:
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), _CHUNK, max(0, size - _CHUNK)).decode(errors="replace")


def run_parts(parts: Sequence[Part], at_once: Mapping[str, int]) -> list[Ended]:
    """Run all; what the first of those that have not ended writes is printed as it comes.

    Ctrl-C is passed on to each once; those that do not end then are killed.

    Args:
        at_once: how many of each kind run at once, at most.
    """
    with ExitStack() as stack:
        started: list[_Running | None] = [None] * len(parts)
        try:
            for number, part in enumerate(parts):
                sys.stdout.write(f"\n$ {' '.join(part.argv[1:])}\n")
                while (running := started[number]) is None or running.ended is None:
                    _start(parts, started, at_once, stack)
                    for each in started:
                        if each is not None:
                            each.look()
                    if running is not None:
                        running.print_more()
                    time.sleep(_POLL_S)
                running.print_more()
        except BaseException:
            _end_all([each for each in started if each is not None and each.ended is None])
            raise
        return [each.ended for each in started if each is not None and each.ended is not None]


def _start(
    parts: Sequence[Part], started: list[_Running | None], at_once: Mapping[str, int], stack: ExitStack
) -> None:
    """Start what may begin now, in order."""
    waits = set()  # kinds of which a part alone is next
    for number, part in enumerate(parts):
        if started[number] is not None or part.kind in waits:
            continue
        same = [each for each in started if each and not each.ended and each.part.kind == part.kind]
        most = 1 if part.alone or any(each.part.alone for each in same) else at_once[part.kind]
        if len(same) < most:
            started[number] = _begin(part, stack)
        elif part.alone:
            waits.add(part.kind)


def _begin(part: Part, stack: ExitStack) -> _Running:
    output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 -- the stack closes it
    stack.callback(output.close)
    environ = {**os.environ, **part.environ}
    # A process group of its own: at a terminal Ctrl-C would reach it twice.
    process = subprocess.Popen(
        part.argv, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
    )
    return _Running(part, output, process)


def _end_all(left: Sequence[_Running]) -> None:
    for each in left:
        each.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + END_S
    try:
        for each in left:
            each.process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # Ctrl-C again: at once
        pass
    finally:
        for each in left:
            if each.process.poll() is None:
                each.kill()
            each.print_more()
