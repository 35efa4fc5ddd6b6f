"""What a sink is: it takes records and writes them somewhere; only rank 0 has sinks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from pydantic import BaseModel, ConfigDict

from dist_train.rundir.directory import RunDir

# {kind: train|eval, step, total_steps, epoch, epochs, samples, loss, lr, metrics: {}}; of a training step
# also samples_per_s, data_wait (0 to 1), seconds per step since the last record (step_s, data_s, compute_s)
# and in the attempt so far (…_mean), eta_s, memory_bytes (of memory_rank, which holds most), and with several
# ranks slowest_rank with its own seconds per step (slowest_s) beside the mean of the others (others_s);
# in fp16 loss_scale, and overflow_steps: the updates that were left out so far;
# gradient_number (one number of all gradients) and rank_losses (the sum of each rank's own losses), by which
# `dist-train diff` finds where two runs part.
# {kind: callback, step, epoch, …} is what a callback has logged.
Record = Mapping[str, Any]


class SinkOptions(BaseModel):
    """Base of every sink's options: frozen, unknown names refused, each with a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class SinkContext:
    """What a sink may know of the run when it is opened.

    Args:
        run_dir: where a sink may write; None for a run without a directory.
        total_steps: optimizer steps of the whole run.
        epochs: epochs of the whole run (the last may be cut short).
        stream: where a sink for people writes.
    """

    run_dir: RunDir | None = None
    total_steps: int = 0
    epochs: int = 0
    stream: TextIO = field(default_factory=lambda: sys.stdout)


class Sink(Protocol):
    """One destination of records. `SinkFanout` keeps its exceptions away from the training loop."""

    def record(self, record: Record) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Make everything taken so far durable; called before each checkpoint."""

    def close(self) -> None:
        """Flush and release what is open; called once, on every way out."""


class SinkFactory(Protocol):
    """What a sink file's constant SINK is: usually the class itself.

    Its attribute `Options`, a subclass of SinkOptions, declares the options that a config may give beside the
    name; they are the second argument. Without it, the sink takes no options and is called with the context.
    """

    def __call__(self, context: SinkContext, *options: Any) -> Sink:
        """Open the sink for one run."""
