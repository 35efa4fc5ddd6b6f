"""Run dist_train.checkpoint in a process of its own: the command line loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dist_train.errors import (
    CheckpointError,
    CheckpointWriteError,
    DistTrainError,
    ExitCode,
    NotFoundError,
    UnavailableError,
)

_LEAVE_S = 10.0


def ask_checkpoints(verb: str, path: Path | str, *words: str) -> Iterator[dict[str, Any]]:
    """Yield one record per checkpoint, as each is done; raise the process's error."""
    command = [sys.executable, "-P", "-m", "dist_train.checkpoint", verb, str(path), *words]
    # A file, not a second pipe: it is read only after the first pipe's end.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as messages,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        except GeneratorExit:
            process.kill()
            raise
        except KeyboardInterrupt:
            # The process got SIGINT from the terminal too, and removes its incomplete files.
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(_LEAVE_S)
            process.kill()
            raise
        code = process.wait()
        messages.seek(0)
        stderr = messages.read().strip()
    if code != 0:
        raise _error(code, stderr)
    if stderr:
        print(stderr, file=sys.stderr)


def _error(code: int, stderr: str) -> DistTrainError:
    text = stderr.removeprefix("error: ")
    kinds: dict[int, type[DistTrainError]] = {
        ExitCode.NOT_FOUND: NotFoundError,
        ExitCode.CONFIG: CheckpointError,
        ExitCode.CHECKPOINT_WRITE: CheckpointWriteError,
        ExitCode.UNAVAILABLE: UnavailableError,
    }
    if code in kinds:
        return kinds[code](text)
    if code < 0:
        return UnavailableError(
            f"the process that reads checkpoints was ended by signal {-code}",
            hint="signal 9 is often the kernel's out-of-memory killer (`dmesg`): it needs more memory",
        )
    return DistTrainError(f"reading checkpoints ended with exit code {code}: {text}")
