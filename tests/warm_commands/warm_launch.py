"""Run launches as forks of one process, where that makes no difference but for the time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from warm_commands.forked_command import command_server, same_early_variables

from dist_train import testing
from dist_train.testing import CliResult
from dist_train.testing.command import StartedCommand, spawn_command

# 1: every command and agent is a new interpreter, as a user starts them. CI runs a sample of the tests so.
COLD = "DIST_TRAIN_TESTING_COLD"


def launch_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
) -> CliResult:
    """Run `dist-train ARGS`, as dist_train.testing.launch_cli does."""
    return testing.launch_cli(args, cwd, env, timeout_s, _start)


def _start(
    args: Sequence[str], cwd: str | Path, environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> StartedCommand:
    if not _starts_ranks(args) or os.environ.get(COLD) == "1" or not same_early_variables(environ):
        return spawn_command(args, cwd, environ, out, err)
    return command_server().start(args, str(cwd), environ, out.fileno(), err.fileno())


def _starts_ranks(args: Sequence[str]) -> bool:
    return sys.platform == "linux" and args[:1] in (["launch"], ["resume"]) and "--dry-run" not in args
