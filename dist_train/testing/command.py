"""Run the command line as a subprocess, with a deadline for it and all that it starts."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil

from dist_train.testing.process_tree import ask_for_stacks, descendants, describe, end, with_environ

_ID = "DIST_TRAIN_TESTING_COMMAND"


@dataclass(frozen=True)
class CliResult:
    """Exit code and output of a command; `code` is negative for a signal, as in subprocess."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        """Everything, for assertion messages."""
        output = f"-- stdout\n{self.stdout}\n-- stderr\n{self.stderr}"
        return f"exit code {self.code} after {self.seconds:.1f} s\n{output}"


class CliTimedOut(TimeoutError):
    """The command missed its deadline and was killed with all that it had started."""

    def __init__(self, args: Sequence[str], ended: Sequence[str], partial: CliResult) -> None:
        tree = "\n  ".join(ended)
        super().__init__(f"dist-train {' '.join(args)}: killed with\n  {tree}\n{partial}")
        self.partial = partial


class StartedCommand(Protocol):
    """What is needed of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""

    def kill(self) -> None:
        """Send SIGKILL."""


StartCommand = Callable[[Sequence[str], str | Path, Mapping[str, str], IO[bytes], IO[bytes]], StartedCommand]


def launch_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
    start: StartCommand | None = None,
) -> CliResult:
    """Run `dist-train ARGS` in a new session and wait for it.

    Args:
        args: the arguments after `dist-train`, starting with the subcommand.
        cwd: working directory.
        env: changes to this process's environment; None removes a variable.
        timeout_s: after it the command and all that it started are killed, by pid.
        start: starts the process; by default a new interpreter.

    Raises:
        CliTimedOut: with the output so far, including the stacks of its ranks.
    """
    identity = secrets.token_hex(8)
    environ = {**os.environ, _ID: identity}
    for name, value in (env or {}).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    # Files, not pipes: an orphan that holds a pipe open would block the reader for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = (start or spawn_command)(args, cwd, environ, out, err)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ask_for_stacks(_processes(process, identity))
            ended = _end_tree(process, identity)
            partial = CliResult(process.wait(), _text(out), _text(err), time.monotonic() - began)
            raise CliTimedOut(args, ended, partial) from None
        except BaseException:
            # The test's deadline, or Ctrl-C: pytest shows what this process has written.
            ask_for_stacks(_processes(process, identity))
            _end_tree(process, identity)
            process.wait()
            sys.stderr.write(_text(err))
            raise
        return CliResult(process.wait(), _text(out), _text(err), time.monotonic() - began)


def spawn_command(
    args: Sequence[str], cwd: str | Path, environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> StartedCommand:
    """Start `dist-train ARGS` by a new interpreter, in a new session."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dist_train.cli.main", *args],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def _processes(process: StartedCommand, identity: str) -> list[psutil.Process]:
    """Everything that it has started, orphans included; may have duplicates."""
    return [*descendants(process.pid), *with_environ({_ID: identity})]


def _end_tree(process: StartedCommand, identity: str) -> list[str]:
    """Kill root and descendants until none is left: a parent may start another one meanwhile."""
    ended: list[str] = []
    while True:
        processes = {found.pid: found for found in _processes(process, identity)}
        if not processes and process.poll() is not None:
            return ended
        ended += [describe(found) for found in processes.values()]
        process.kill()
        left = end(processes.values())
        process.wait()
        if left:
            return ended


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
