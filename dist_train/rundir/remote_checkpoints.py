"""checkpoints/remote.json: at which URL a run's checkpoints are, and which; rank 0 writes it.

What reads a run's records (agents, `status`, `resume`) asks no store: it finds here what rank 0 saw last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import read_json, write_json_atomic

# Of checkpoint.directory: stands for the run's name.
RUN_NAME = "{run}"


@dataclass(frozen=True)
class RemoteCheckpoints:
    """The record.

    Args:
        url: where they are.
        steps: those that were committed when rank 0 looked last, after a save or a restore.
    """

    url: str
    steps: tuple[int, ...]


def url_of(directory: str, run: RunDir) -> str:
    """The URL that `checkpoint.directory` means for a run."""
    return directory.replace(RUN_NAME, run.path.name).rstrip("/")


def write_remote(run: RunDir, url: str, steps: Sequence[int]) -> None:
    """Write the record atomically."""
    write_json_atomic(run.remote_checkpoints, {"url": url, "steps": sorted(steps)})


def read_remote(run: RunDir) -> RemoteCheckpoints | None:
    """The record; None where the checkpoints are in the run directory, or none was looked for yet."""
    try:
        record = read_json(run.remote_checkpoints)
    except ValueError:
        return None
    if record is None:
        return None
    steps = [step for step in record.get("steps", ()) if isinstance(step, int)]
    return RemoteCheckpoints(str(record.get("url", "")), tuple(sorted(steps)))
