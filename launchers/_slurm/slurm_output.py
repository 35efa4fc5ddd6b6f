"""The output files of a job's tasks, read while they grow."""

from __future__ import annotations

from pathlib import Path

from dist_train.rundir import RunDir
from dist_train.rundir.outcome_text import HeadlinesOnly


class JobConsole:
    """Reads the new lines of a job's output files; a requeued job appends to them."""

    def __init__(self, run: RunDir, job: str) -> None:
        self._folder = run.logs
        self._job = job
        self._offsets: dict[Path, int] = {}
        self._blocks: dict[Path, HeadlinesOnly] = {}

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._job}_*_log.out"))

    def lines(self) -> list[bytes]:
        """The lines since the last call; of a failure block only its headline.

        The block of the last failure is printed whole at the end.
        """
        found = []
        for path in self._files():
            block = self._blocks.setdefault(path, HeadlinesOnly())
            found += [line for line in self._new(path) if block.shows(line.decode(errors="replace"))]
        return found

    def _new(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
        except OSError:
            return []
        whole, newline, _ = text.rpartition(b"\n")
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
        return whole.split(b"\n") if newline else []
