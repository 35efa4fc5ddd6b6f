"""For tests of dist-train and of plug-ins: ranks as processes, the command line, contract suites.

Only `plugin` needs pytest; load it by `pytest_plugins = ["dist_train.testing.plugin"]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "CliResult": "dist_train.testing.command",
    "CliTimedOut": "dist_train.testing.command",
    "RanksFailed": "dist_train.testing.ranks",
    "check_launcher": "dist_train.testing.contracts.launcher",
    "check_strategy": "dist_train.testing.contracts.strategy",
    "launch_cli": "dist_train.testing.command",
    "run_ranks": "dist_train.testing.ranks",
}

if TYPE_CHECKING:
    from dist_train.testing.command import CliResult as CliResult
    from dist_train.testing.command import CliTimedOut as CliTimedOut
    from dist_train.testing.command import launch_cli as launch_cli
    from dist_train.testing.contracts.launcher import check_launcher as check_launcher
    from dist_train.testing.contracts.strategy import check_strategy as check_strategy
    from dist_train.testing.ranks import RanksFailed as RanksFailed
    from dist_train.testing.ranks import run_ranks as run_ranks

__all__ = [
    "CliResult",
    "CliTimedOut",
    "RanksFailed",
    "check_launcher",
    "check_strategy",
    "launch_cli",
    "run_ranks",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
