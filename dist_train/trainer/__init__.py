"""The order of things in time: steps, evaluations, records, saves; the one place that wires the rooms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "LossOutput": "dist_train.trainer.task",
    "NextTokenTask": "dist_train.trainer.task",
    "SupervisedTask": "dist_train.trainer.task",
    "Task": "dist_train.trainer.task",
    "Trainer": "dist_train.trainer.fit",
}

if TYPE_CHECKING:
    from dist_train.trainer.fit import Trainer as Trainer
    from dist_train.trainer.task import LossOutput as LossOutput
    from dist_train.trainer.task import NextTokenTask as NextTokenTask
    from dist_train.trainer.task import SupervisedTask as SupervisedTask
    from dist_train.trainer.task import Task as Task

__all__ = ["LossOutput", "NextTokenTask", "SupervisedTask", "Task", "Trainer"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
