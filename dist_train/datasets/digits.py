"""The UCI handwritten digits: 1,797 images of 8 x 8 pixels, every fifth of each digit held out."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from dist_train.errors import ConfigError

Split = Literal["train", "evaluation"]
Sample = tuple[torch.Tensor, torch.Tensor]


class Digits(Dataset[Sample]):
    """Samples (image float32 [1, 8, 8] in 0..1, label int64 []).

    Every fifth image of each digit is for evaluation (359), the others for training (1,438).

    Args:
        split: "train" or "evaluation".
        augment: shift each image by up to one pixel each way, drawn from torch's global generator.
    """

    def __init__(self, split: Split = "train", augment: bool = False) -> None:
        if split not in ("train", "evaluation"):
            raise ConfigError(f"split {split!r} does not exist", hint='give "train" or "evaluation"')
        images, labels = _rows()
        held_out = _held_out(labels)
        chosen = held_out if split == "evaluation" else ~held_out
        self.images = images[chosen]
        self.labels = labels[chosen]
        self.augment = augment
        self.dataset_id = f"uci-digits-1/{split}"
        self.deterministic_items = not augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        image = self.images[index]
        return (_shifted(image) if self.augment else image), self.labels[index]

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """Read many samples: one gather instead of one view per sample."""
        if self.augment:
            return [self[index] for index in indices]
        chosen = torch.tensor(indices)
        return list(zip(self.images[chosen].unbind(), self.labels[chosen].unbind(), strict=True))


def train(augment: bool = False) -> Digits:
    """The training split."""
    return Digits("train", augment)


def evaluation() -> Digits:
    """The evaluation split: the held-out fifth."""
    return Digits("evaluation")


@cache
def _rows() -> Sample:
    packed = files("dist_train.datasets").joinpath("files", "digits.csv.gz").read_bytes()
    text = gzip.decompress(packed).decode("ascii")
    table = np.array([line.split(",") for line in text.split()], dtype=np.int64)
    images = torch.from_numpy(table[:, :64]).to(torch.float32).div_(16).reshape(-1, 1, 8, 8)
    return images, torch.from_numpy(table[:, 64].copy())


def _held_out(labels: torch.Tensor) -> torch.Tensor:
    # Counted within each digit: the file's rows run 0, 1, 2, ..., so that every fifth row of it
    # would hold out mostly two of the digits.
    seen = torch.nn.functional.one_hot(labels, 10).cumsum(0)
    return seen[torch.arange(len(labels)), labels] % 5 == 3


def _shifted(image: torch.Tensor) -> torch.Tensor:
    down, right = torch.randint(0, 3, (2,)).tolist()
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    return padded[:, down : down + 8, right : right + 8]
