"""A run's log files by rank and attempt, also while they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dist_train.errors import NotFoundError
from dist_train.rundir import RunDir
from dist_train.rundir.display_number import display_number

_POLL_S = 0.2


def follow_logs(
    run: RunDir, rank: int | None, attempt: int | None, follow: bool, alive: Callable[[], bool]
) -> Iterator[str]:
    """Yield the lines of one rank's log, or of every rank's with the prefix `[rank 3]`.

    Args:
        attempt: counts from 0, as the folders do; None: the newest.
        follow: go on, into later attempts too, until `alive()` is false and all is read.

    Raises:
        NotFoundError: the rank or attempt has no log (66).
    """
    offsets: dict[Path, int] = {}
    first = attempts(run)[-1:] or [0]
    while True:
        running = follow and alive()
        # Also the attempts before the newest: their lines since the last poll are often the traceback.
        wanted = [number for number in attempts(run) if number >= first[0]] if attempt is None else [attempt]
        files = _files(run, rank, wanted)
        if not files and not running:
            shown = [display_number(number) for number in attempts(run)]
            raise NotFoundError(
                f"{run.logs} has no log of {'any rank' if rank is None else f'rank {rank}'}"
                + ("" if attempt is None else f" in attempt {display_number(attempt)}"),
                cause=f"attempts with logs: {', '.join(map(str, shown)) or 'none'}",
            )
        for path in files:
            yield from _new_lines(path, offsets, rank is None)
        if not running:
            return
        time.sleep(_POLL_S)


def attempts(run: RunDir) -> list[int]:
    """Attempts that have logs, ascending."""
    if not run.logs.is_dir():
        return []
    numbers = (folder.name.removeprefix("attempt-") for folder in run.logs.glob("attempt-*"))
    return sorted(int(number) for number in numbers if number.isdigit())


def _files(run: RunDir, rank: int | None, wanted: list[int]) -> list[Path]:
    files: list[Path] = []
    for number in wanted:
        folder = run.attempt_logs(number)
        pattern = "rank-*.log" if rank is None else f"rank-{rank}.log"
        files += sorted(folder.glob(pattern), key=lambda path: int(path.stem.removeprefix("rank-")))
    return files


def _new_lines(path: Path, offsets: dict[Path, int], with_prefix: bool) -> Iterator[str]:
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        text = file.read()
    whole, newline, _ = text.rpartition(b"\n")
    offsets[path] = offsets.get(path, 0) + len(whole) + len(newline)
    prefix = f"[{path.stem.replace('-', ' ')}] " if with_prefix else ""
    if newline:
        for line in whole.split(b"\n"):
            yield prefix + line.decode(errors="replace")
