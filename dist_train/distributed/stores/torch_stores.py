"""Torch's key-value stores under names that the type checker knows too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # torch.distributed re-exports them without saying so to type checkers.
    from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
else:
    from torch.distributed import FileStore, PrefixStore, Store, TCPStore

__all__ = ["FileStore", "PrefixStore", "Store", "TCPStore"]
