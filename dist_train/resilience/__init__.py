"""Fault handling on the rank's side: the agreed stop, the hang watchdog, injected faults.

session          dt.init: join the job, open the Run
stop             StopFlag, StopVote: how ranks agree to save and stop at the same step
watchdog         HangWatchdog: end a rank that makes no progress
fault_injection  FaultPlan: faults on purpose, by rank and step, for tests and drills
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "FaultPlan": "dist_train.resilience.fault_injection",
    "HangWatchdog": "dist_train.resilience.watchdog",
    "StopFlag": "dist_train.resilience.stop",
    "StopVote": "dist_train.resilience.stop",
    "init": "dist_train.resilience.session",
}

if TYPE_CHECKING:
    from dist_train.resilience.fault_injection import FaultPlan as FaultPlan
    from dist_train.resilience.session import init as init
    from dist_train.resilience.stop import StopFlag as StopFlag
    from dist_train.resilience.stop import StopVote as StopVote
    from dist_train.resilience.watchdog import HangWatchdog as HangWatchdog

__all__ = ["FaultPlan", "HangWatchdog", "StopFlag", "StopVote", "init"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
