"""Run dist_train.estimate in a process of its own: the command line loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dist_train.errors import (
    ConfigError,
    DistTrainError,
    ExitCode,
    NotFoundError,
    UnavailableError,
    UsageError,
)

_KINDS: dict[int, type[DistTrainError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.NOT_FOUND: NotFoundError,
    ExitCode.UNAVAILABLE: UnavailableError,
    ExitCode.CONFIG: ConfigError,
}


def ask_estimate(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record; raise the process's error.

    Args:
        asked: what `python -m dist_train.estimate` reads.

    Raises:
        ConfigError: the model or the ranks do not fit.
        UnavailableError: the process was killed: it had too little memory, most likely.
    """
    command = [sys.executable, "-P", "-m", "dist_train.estimate"]
    # Its stderr is ours: the user's own code may warn, and its traceback is printed there.
    done = subprocess.run(command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=False)
    try:
        record: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        record = {}
    if done.returncode == 0 and record:
        return record
    if done.returncode in _KINDS and "what" in record:
        raise _KINDS[done.returncode](record["what"], cause=record["cause"], hint=record["hint"])
    if done.returncode < 0:
        raise UnavailableError(
            f"the process that estimates was ended by signal {-done.returncode}",
            hint="signal 9 is often the kernel's out-of-memory killer (`dmesg`): it needs more memory",
        )
    raise ConfigError(
        f"the estimate ended with exit code {done.returncode}",
        cause="the model, the data or the optimizer raised the error above",
    )
