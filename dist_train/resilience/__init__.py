"""Decisions about death on the rank's side: stop, watchdog, injected faults."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "FaultPlan": "dist_train.resilience.faults",
    "HangWatchdog": "dist_train.resilience.watchdog",
    "StopFlag": "dist_train.resilience.stop",
    "StopVote": "dist_train.resilience.stop",
    "init": "dist_train.resilience.session",
}

if TYPE_CHECKING:
    from dist_train.resilience.faults import FaultPlan as FaultPlan
    from dist_train.resilience.session import init as init
    from dist_train.resilience.stop import StopFlag as StopFlag
    from dist_train.resilience.stop import StopVote as StopVote
    from dist_train.resilience.watchdog import HangWatchdog as HangWatchdog

__all__ = ["FaultPlan", "HangWatchdog", "StopFlag", "StopVote", "init"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
