"""The run directory: one record per file, one writer per file."""

from __future__ import annotations

from dist_train.rundir.directory import RunDir

__all__ = ["RunDir"]
