"""What survives: checkpoints that exist whole or not at all, and are checked before they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that owns it; resolved on use, so that importing the room loads no torch.
_PUBLIC = {
    "CheckpointManager": "dist_train.checkpoint.manager",
    "Committed": "dist_train.checkpoint.records",
    "Restored": "dist_train.checkpoint.records",
    "list_checkpoints": "dist_train.checkpoint.verify",
    "load_model": "dist_train.checkpoint.files",
    "save_model": "dist_train.checkpoint.files",
    "verify_checkpoint": "dist_train.checkpoint.verify",
}

if TYPE_CHECKING:
    from dist_train.checkpoint.files import load_model as load_model
    from dist_train.checkpoint.files import save_model as save_model
    from dist_train.checkpoint.manager import CheckpointManager as CheckpointManager
    from dist_train.checkpoint.records import Committed as Committed
    from dist_train.checkpoint.records import Restored as Restored
    from dist_train.checkpoint.verify import list_checkpoints as list_checkpoints
    from dist_train.checkpoint.verify import verify_checkpoint as verify_checkpoint

__all__ = [
    "CheckpointManager",
    "Committed",
    "Restored",
    "list_checkpoints",
    "load_model",
    "save_model",
    "verify_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.checkpoint' has no attribute {name!r}")
