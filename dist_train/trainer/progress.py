"""The one place that tells the run how far training is: its watchdog ends a rank that falls silent."""

from __future__ import annotations

from dist_train.distributed.run import Run


def mark(run: Run, step: int) -> None:
    """Optimizer step `step` is done on this rank."""
    run.progress(f"step {step}", step)


def mark_alive(run: Run, what: str) -> None:
    """This rank is at something else that takes time: an evaluation, a save."""
    run.progress(what)
