"""dist-train: the same PyTorch job on this machine, on Slurm and on Kubernetes; never silently wrong.

Importing this package loads no torch: public names and rooms are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that owns it (CONTRACT section 5, frozen by a test).
_PUBLIC = {
    "init": "dist_train.resilience.session",
    "Run": "dist_train.distributed.run",
    "prepare": "dist_train.strategies.prepare",
    "unwrap": "dist_train.strategies.unwrap",
    "to_device": "dist_train.distributed.transfer",
    "loader": "dist_train.data.exact",
    "Predictor": "dist_train.inference.predictor",
}
_ROOMS = frozenset(
    [
        "errors",
        "env",
        "registry",
        "rundir",
        "config",
        "jobs",
        "cli",
        "agent",
        "entrypoint",
        "distributed",
        "strategies",
        "data",
        "checkpoint",
        "resilience",
        "trainer",
        "inference",
        "observability",
        "datasets",
        "models",
        "testing",
    ]
)

if TYPE_CHECKING:
    from dist_train.data.exact import loader as loader
    from dist_train.distributed.run import Run as Run
    from dist_train.distributed.transfer import to_device as to_device
    from dist_train.inference.predictor import Predictor as Predictor
    from dist_train.resilience.session import init as init
    from dist_train.strategies.prepare import prepare as prepare
    from dist_train.strategies.unwrap import unwrap as unwrap

__all__ = ["Predictor", "Run", "__version__", "init", "loader", "prepare", "to_device", "unwrap"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"dist_train.{name}")
    raise AttributeError(f"module 'dist_train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_ROOMS})
