"""Run the command line as a subprocess, with a deadline for it and all that it starts."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from dist_train.testing.forked_command import ForkedCommand, command_server, same_early_variables
from dist_train.testing.process_tree import ask_for_stacks, descendants, describe, end, with_environ

COLD = "DIST_TRAIN_TESTING_COLD"  # 1: start commands as a user does, by new interpreters
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


def launch_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
) -> CliResult:
    """Run `dist-train ARGS` in a new session and wait for it.

    Args:
        args: the arguments after `dist-train`, starting with the subcommand.
        cwd: working directory.
        env: changes to this process's environment; None removes a variable.
        timeout_s: after it the command and all that it started are killed, by pid.

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
        process = _start(args, cwd, environ, out, err)
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


def _start(
    args: Sequence[str], cwd: str | Path, environ: dict[str, str], out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes] | ForkedCommand:
    if _is_forked(args, environ):
        return command_server().start(args, str(cwd), environ, out.fileno(), err.fileno())
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dist_train.cli.main", *args],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def _is_forked(args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the command starts ranks, whose imports a fork of the command server saves, and may be one."""
    return (
        bool(args)
        and args[0] in ("launch", "resume")
        and "--dry-run" not in args
        and sys.platform == "linux"
        and os.environ.get(COLD) != "1"
        and same_early_variables(environ)
    )


def _processes(process: subprocess.Popen[bytes] | ForkedCommand, identity: str) -> list[psutil.Process]:
    """Everything that it has started, orphans included; may have duplicates."""
    return [*descendants(process.pid), *with_environ({_ID: identity})]


def _end_tree(process: subprocess.Popen[bytes] | ForkedCommand, identity: str) -> list[str]:
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
