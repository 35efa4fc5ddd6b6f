"""Where traces are in a run directory: written whole or not at all, and read again.

`profile/attempt-K/rank-R.trace.json.gz`: what torch's profiler exports, compressed; Perfetto and chrome://tracing
read it too. Its key `dist_train` has the facts that the trace itself lacks.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_train.errors import ConfigError, NotFoundError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.durable_files import durable_file, sync_directory
from dist_train.rundir.format_amounts import size

FACTS = "dist_train"
_NAME = re.compile(r"rank-(\d+)\.trace\.json\.gz")
# torch writes this key last: a trace without it was cut off, by a full disk for one.
_LAST_KEY = b'"traceName"'
_TAIL_BYTES = 8192
_PIECE_BYTES = 1 << 20
# What torch exports per step is below this by far; with so much room a disk is not filled by it.
_EXPORTED_PER_STEP = 8 << 20
# Left free for the run's logs and records.
_LEFT_FREE = 64 << 10


def trace_path(run: RunDir, attempt: int, rank: int) -> Path:
    """Where the trace of one rank is."""
    return run.attempt_profile(attempt) / f"rank-{rank}.trace.json.gz"


@contextmanager
def export_path(path: Path, steps: int) -> Iterator[Path]:
    """A file for torch to export a trace of so many steps to; all that torch leaves there is removed.

    It is beside the trace's place, or among temporary files where the run's disk has too little room: torch
    itself would fill it, and the run's logs and records would fail then.

    Raises:
        OSError: ENOSPC where neither has room.
    """
    folder = _folder_with_space(path.parent, steps * _EXPORTED_PER_STEP)
    # Not a mere file: torch writes beside it first, and leaves that where it fails.
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=f".{path.name}.", ignore_cleanup_errors=True
    ) as exported:
        yield Path(exported) / "raw"


def _folder_with_space(beside: Path, needed: int) -> Path:
    most = 0
    for folder in (beside, _temporary_folder()):
        free = 0 if folder is None else shutil.disk_usage(folder).free
        if folder is not None and free >= needed:
            return folder
        most = max(most, free)
    why = f"No space left on device: {size(most)} are free, an export may take {size(needed)}"
    raise OSError(errno.ENOSPC, why, str(beside))


def _temporary_folder() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return None


def compress_trace(raw: Path, path: Path) -> None:
    """Put an exported trace at `path`, compressed and durable; raises OSError, and leaves nothing there then.

    The memory that it takes does not grow with the trace. It is compressed beside `raw` first: a disk without
    room for it is not filled.
    """
    packed = raw.with_name(f"{raw.name}.gz")
    try:
        _compress(raw, packed)
        _place(packed, path)
    finally:
        packed.unlink(missing_ok=True)


def _compress(raw: Path, packed: Path) -> None:
    if not raw.exists():  # torch only logs why
        raise OSError("torch could not export it")
    packer = zlib.compressobj(level=5, wbits=31)
    with raw.open("rb") as file, packed.open("wb") as out:
        exported = file.seek(0, os.SEEK_END)
        file.seek(max(0, exported - _TAIL_BYTES))
        if _LAST_KEY not in file.read():
            raise OSError(f"torch exported only {exported} bytes of it")
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            out.write(packer.compress(piece))
        out.write(packer.flush())


def _place(packed: Path, path: Path) -> None:
    needed, free = packed.stat().st_size + _LEFT_FREE, shutil.disk_usage(path.parent).free
    if free < needed:
        why = f"No space left on device: {size(free)} are free, the trace has {size(needed - _LEFT_FREE)}"
        raise OSError(errno.ENOSPC, why, str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with packed.open("rb") as file, durable_file(temporary, 0o600, exclusive=False) as write:
            while piece := file.read(_PIECE_BYTES):
                write(memoryview(piece))
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def find_traces(run: RunDir) -> dict[int, dict[int, Path]]:
    """The traces of a run: attempt -> rank -> file, ascending."""
    found: dict[int, dict[int, Path]] = {}
    for path in run.profile.glob("attempt-*/rank-*.trace.json.gz"):
        number, name = path.parent.name.removeprefix("attempt-"), _NAME.fullmatch(path.name)
        if name is not None and number.isdigit():
            found.setdefault(int(number), {})[int(name[1])] = path
    return {attempt: dict(sorted(found[attempt].items())) for attempt in sorted(found)}


def read_trace(path: Path) -> dict[str, Any]:
    """Read a whole trace; raises NotFoundError, or ConfigError for one that is damaged."""
    try:
        record = json.loads(gzip.decompress(path.read_bytes()))
        if not isinstance(record, dict) or not isinstance(record.get("traceEvents"), list):
            raise ValueError("it holds no traceEvents")
    except FileNotFoundError:
        raise NotFoundError(f"there is no trace {path}") from None
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}") from None
    return record
