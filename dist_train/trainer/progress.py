"""The one place that tells the run how far training is."""

from __future__ import annotations

from dist_train.distributed.run import Run


def mark(run: Run, step: int) -> None:
    """Optimizer step `step` is done on this rank."""
