"""Errors of a prediction: a batch that failed, a worker that could not start."""

from __future__ import annotations

from typing import ClassVar

from dist_train.errors import DistTrainError, ExitCode, UnavailableError


class BatchFailed(DistTrainError):
    """The model raised on a batch, or the batch has ended several workers.

    Args:
        index: which batch, counted from 0 in the order in which they were given.
        traceback: the worker's, where the model raised.
    """

    # That of a rank whose own code raised.
    exit_code: ClassVar[ExitCode] = ExitCode.EARLY_EXIT

    def __init__(
        self, what: str, *, index: int, traceback: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, hint=hint)
        self.index = index
        self.traceback = traceback

    def __str__(self) -> str:
        return super().__str__() + (f"\n{self.traceback.rstrip()}" if self.traceback else "")


class WorkerBroken(UnavailableError):
    """A worker could not start: the model cannot be opened there, or its device cannot be used."""
