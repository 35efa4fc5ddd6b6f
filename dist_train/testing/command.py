"""The command line as a process of its own, with a deadline for it and for all that it starts."""

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

from dist_train.testing.processes import ask_for_stacks, descendants, describe, end, marked

_ID = "DIST_TRAIN_TESTING_COMMAND"


@dataclass(frozen=True)
class CliResult:
    """How a command ended. `code` is negative for a signal, as subprocess has it."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        """For assertion messages: everything that is known."""
        said = f"-- stdout\n{self.stdout}\n-- stderr\n{self.stderr}"
        return f"exit code {self.code} after {self.seconds:.1f} s\n{said}"


class CliTimedOut(TimeoutError):
    """The command had not ended by its deadline; it and all that it had started were killed."""

    def __init__(self, words: Sequence[str], ended: Sequence[str], partial: CliResult) -> None:
        tree = "\n  ".join(ended)
        super().__init__(f"dist-train {' '.join(words)}: killed with\n  {tree}\n{partial}")
        self.partial = partial


def launch_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
) -> CliResult:
    """Run `dist-train ARGS` in a session of its own and wait for its end.

    Args:
        args: the words after `dist-train`, the verb included.
        cwd: where it runs.
        env: changes to this process's environment; None removes a variable.
        timeout_s: after it the command and everything that it started are killed, by number.

    Raises:
        CliTimedOut: with what it had written by then, the stacks of its ranks too.
    """
    identity = secrets.token_hex(8)
    environ = {**os.environ, _ID: identity}
    for name, value in (env or {}).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    # Files, not pipes: an orphan that holds a pipe would keep us reading for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dist_train.cli.main", *args],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ask_for_stacks(_kin(process, identity))
            ended = _end_tree(process, identity)
            partial = CliResult(process.wait(), _text(out), _text(err), time.monotonic() - began)
            raise CliTimedOut(args, ended, partial) from None
        except BaseException:
            # A test's own deadline, or Ctrl-C: pytest shows what this process has written.
            ask_for_stacks(_kin(process, identity))
            _end_tree(process, identity)
            process.wait()
            sys.stderr.write(_text(err))
            raise
        return CliResult(process.returncode, _text(out), _text(err), time.monotonic() - began)


def _kin(process: subprocess.Popen[bytes], identity: str) -> list[psutil.Process]:
    """Everything that it has started, orphans too; some may be named twice."""
    return [*descendants(process.pid), *marked(_ID, identity)]


def _end_tree(process: subprocess.Popen[bytes], identity: str) -> list[str]:
    """Kill root and descendants until none is left: a parent may start one more while it dies."""
    told: list[str] = []
    while True:
        kin = {found.pid: found for found in _kin(process, identity)}
        if not kin and process.poll() is not None:
            return told
        told += [describe(found) for found in kin.values()]
        process.kill()
        left = end(kin.values())
        process.wait()
        if left:
            return told


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
