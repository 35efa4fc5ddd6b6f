"""Where traces are in a run directory: written whole or not at all, and read again.

`profile/attempt-K/rank-R.trace.json.gz`: what torch's profiler exports, compressed; Perfetto and chrome://tracing
read it too. Its key `dist_train` has the facts that the trace itself lacks.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from dist_train.errors import ConfigError, NotFoundError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.durable_files import durable_file, sync_directory

FACTS = "dist_train"
_NAME = re.compile(r"rank-(\d+)\.trace\.json\.gz")
# torch writes this key last: a trace without it was cut off, by a full disk for one.
_LAST_KEY = b'"traceName"'
_TAIL_BYTES = 8192
_PIECE_BYTES = 1 << 20


def trace_path(run: RunDir, attempt: int, rank: int) -> Path:
    """Where the trace of one rank is."""
    return run.attempt_profile(attempt) / f"rank-{rank}.trace.json.gz"


def raw_path(path: Path) -> Path:
    """Where torch exports a trace to, beside its place; removed when it is there."""
    return path.with_name(f".{path.name}.{os.getpid()}.raw")


def compress_trace(raw: Path, path: Path) -> None:
    """Put an exported trace at `path`, compressed and durable; raises OSError, and leaves nothing then.

    The memory that it takes does not grow with the trace.
    """
    with raw.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        if _LAST_KEY not in file.read():
            raise OSError(f"torch exported only {size} bytes of it")
        file.seek(0)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        packer = zlib.compressobj(level=5, wbits=31)
        try:
            with durable_file(temporary, 0o600, exclusive=False) as write:
                while piece := file.read(_PIECE_BYTES):
                    write(memoryview(packer.compress(piece)))
                write(memoryview(packer.flush()))
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
