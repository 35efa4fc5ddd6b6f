"""Byte-level next-token windows over a text; by default CPython's own help topics."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from dist_train.errors import ConfigError

Sample = tuple[torch.Tensor, torch.Tensor]
_HELD_OUT = 10  # the last tenth of the text


class TextBytes(Dataset[Sample]):
    """Samples (input int64 [context], target int64 [context]): the target is one byte further on.

    Args:
        text: the text itself.
        path: or a UTF-8 file that holds it. Neither: CPython's own help topics.
        context: bytes per window.
        split: "train" (the first nine tenths of the bytes) or "evaluation" (the last tenth).
        stride: bytes from one window to the next; default `context`, so that windows do not overlap.
    """

    deterministic_items = True

    def __init__(
        self,
        text: str | None = None,
        path: str | None = None,
        context: int = 64,
        split: Literal["train", "evaluation"] = "train",
        stride: int | None = None,
    ) -> None:
        stride = context if stride is None else stride
        if split not in ("train", "evaluation"):
            raise ConfigError(f"split {split!r} does not exist", hint='give "train" or "evaluation"')
        if context < 1 or stride < 1:
            raise ConfigError(f"context {context} and stride {stride} must be 1 or more", hint="raise them")
        raw = _read(text, path)
        cut = len(raw) - len(raw) // _HELD_OUT
        part = raw[:cut] if split == "train" else raw[cut:]
        if len(part) < context + 1:
            raise ConfigError(
                f"the {split} split has {len(part)} bytes, fewer than one window of {context + 1}",
                hint="give a longer text or a smaller context",
            )
        self.tokens = torch.from_numpy(np.frombuffer(part, dtype=np.uint8).copy())
        self.context = context
        self.stride = stride
        digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
        self.dataset_id = f"text-bytes-1/{digest}/{split}/{context}/{stride}"

    def __len__(self) -> int:
        return (len(self.tokens) - self.context - 1) // self.stride + 1

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} is not in 0 .. {len(self) - 1}")
        window = self.tokens[index * self.stride : index * self.stride + self.context + 1].long()
        return window[:-1], window[1:]

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """Read many samples: one gather instead of one slice per sample."""
        starts = torch.tensor(indices) * self.stride
        windows = self.tokens[starts[:, None] + torch.arange(self.context + 1)].long()
        return [(window[:-1], window[1:]) for window in windows.unbind()]


def _read(text: str | None, path: str | None) -> bytes:
    if text is not None and path is not None:
        raise ConfigError(f"both a text and a path ({path}) are given", hint="give one of them")
    if text is not None:
        return text.encode()
    if path is not None:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot read the text {path}", cause=str(error), hint="check the path"
            ) from error
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()
