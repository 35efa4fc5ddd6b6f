"""Run a command on a pseudo-terminal and render its screen.

The renderer supports text, newline, carriage return, cursor up, clear to the end and colours; anything
else is an error, so that a new escape code is noticed.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_CODE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """Content of a terminal, including lines that have scrolled off.

    Args:
        columns: its width.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> Screen:
        """Render a program's output."""
        at = 0
        while at < len(text):
            if found := _CODE.match(text, at):
                self._apply_escape(found[1], found[2])
                at = found.end()
                continue
            self._put(text[at])
            at += 1
        return self

    def _apply_escape(self, number: str, code: str) -> None:
        if code == "A":
            self.row = max(0, self.row - int(number or 1))
        elif code == "J":
            self.lines = [*self.lines[: self.row], self.lines[self.row][: self.column]]
        elif code != "m":
            raise AssertionError(f"unsupported escape code ESC[{number}{code}")

    def _put(self, character: str) -> None:
        if character == "\n":
            self._next_line()
        elif character == "\r":
            self.column = 0
        else:
            assert character >= " ", f"a control character: {character!r}"
            if self.column == self.columns:
                self._next_line()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _next_line(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


class Terminal:
    """A command on a pseudo-terminal; `text` is all of its output.

    Args:
        argv: the command.
        cwd: working directory.
        columns, rows: the terminal's size.
        env: variables in addition to this process's (without NO_COLOR).
        stdout: a file or pipe instead of the terminal; stderr is always the terminal.
    """

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        self.columns = columns
        self.text = ""
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**environ, "TERM": "xterm-256color", **(env or {})},
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read(self, within_s: float) -> bool:
        """Read pending output; False at end of file."""
        if select.select([self._master], [], [], within_s)[0]:
            try:
                self.text += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # every process has closed it
                return False
        return True

    def wait_for(self, text: str, within_s: float = 30.0) -> None:
        """Read until the output contains the text."""
        deadline = time.monotonic() + within_s
        while text not in self.text:
            assert self.read(0.1), f"it ended without {text!r}: {self.text!r}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {text!r} in {self.text!r}"

    def end(self, within_s: float = 30.0) -> int:
        """Read to the end; returns the exit code."""
        deadline = time.monotonic() + within_s
        while self.read(0.1):
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"not ended within {within_s:g} s: {self.text!r}")
        os.close(self._master)
        return self.process.wait(timeout=10)

    @property
    def lines(self) -> list[str]:
        """Lines on the screen now."""
        return Screen(self.columns).feed(self.text.replace("\r\n", "\n\r")).lines


def python(program: str) -> list[str]:
    """Command line of a Python program given as text."""
    return [sys.executable, "-P", "-c", program]
