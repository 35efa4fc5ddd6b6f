"""Write result.json at the end of a run that ended well; rank 0 only."""

from __future__ import annotations

from typing import Any

from dist_train.distributed.run import Run
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import metrics_hash
from dist_train.rundir.records import read_lines
from dist_train.rundir.result import Result, read_result, write_result
from dist_train.trainer.checkpointing import Saved
from dist_train.trainer.records.throughput import Pace
from dist_train.trainer.training_position import Position


def write_outcome(run: Run, run_dir: RunDir, end: Position, saved: Saved, pace: Pace) -> Result:
    """Write the result; the figures of speed stay those of the attempt that trained last."""
    before = read_result(run_dir)
    trained = pace.samples_per_s > 0 or before is None
    result = Result(
        run_id=run.run_id,
        status="done",
        exit_code=0,
        steps=end.step,
        epochs=end.epoch,
        samples=end.samples_total,
        samples_in_epoch=end.samples_in_epoch,
        world_size=run.world_size,
        attempts=run.attempt + 1,
        metrics=_last_figures(run_dir),
        weights_hash=saved.weights_hash,
        state_hash=saved.state_hash,
        metrics_hash=metrics_hash(run_dir.metrics),
        wall_s=pace.wall_s if trained or before is None else before.wall_s,
        samples_per_s=pace.samples_per_s if trained or before is None else before.samples_per_s,
    )
    write_result(run_dir, result)
    return result


def _last_figures(run_dir: RunDir) -> dict[str, float]:
    """Loss and metrics of the last evaluation, or of the last training step where nothing was evaluated."""
    last: dict[str, dict[str, Any]] = {}
    for record in read_lines(run_dir.metrics):  # one by one: a run of weeks has very many
        kind = str(record.get("kind"))
        if kind not in last or record["step"] >= last[kind]["step"]:
            last[kind] = record
    chosen = last.get("eval") or last.get("train")
    return {} if chosen is None else {"loss": chosen["loss"], **chosen.get("metrics", {})}
