"""result.json: the result of a finished run; rank 0 writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import read_json, write_json_atomic


@dataclass(frozen=True)
class Result:
    """The figures of a finished run; hashes are XXH3-128 in hex.

    Args:
        epochs: whole ones.
        samples_in_epoch: those of one more that was begun and not ended.
        time: where the time of all attempts went (`RunTime.to_record`); None until the agent of node 0 has
            written it, and in results of older versions.
    """

    run_id: str
    status: str
    exit_code: int
    steps: int
    epochs: int
    samples: int
    world_size: int
    attempts: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    weights_hash: str = ""
    state_hash: str = ""
    metrics_hash: str = ""
    wall_s: float = 0.0
    samples_per_s: float = 0.0
    samples_in_epoch: int = 0
    time: Mapping[str, Any] | None = None


def write_result(run: RunDir, result: Result) -> None:
    """Write result.json atomically."""
    write_json_atomic(run.result, asdict(result))


def read_result(run: RunDir) -> Result | None:
    """The result, or None while there is none."""
    record = read_json(run.result)
    if record is None:
        return None
    known: dict[str, Any] = {name: record[name] for name in Result.__dataclass_fields__ if name in record}
    return Result(**known)
