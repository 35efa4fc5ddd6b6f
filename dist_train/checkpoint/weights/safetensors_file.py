"""Read a safetensors file that another tool may have written."""

from __future__ import annotations

from pathlib import Path

import torch

from dist_train.checkpoint.format.tensor_file import Header, read_unverified
from dist_train.checkpoint.store.file import FileStream


def read_safetensors(path: Path) -> tuple[Header, dict[str, torch.Tensor]]:
    """Read the header and every tensor.

    Raises:
        DamagedCheckpoint: it is not a safetensors file, or cut short.
    """
    with FileStream(path) as stream:
        return read_unverified(stream, path.name)
