"""Images in MNIST's file format (IDX, also gzipped): MNIST, Fashion-MNIST, KMNIST, EMNIST, or yours.

Fashion-MNIST is a Debian package: `apt-get install dataset-fashion-mnist`; its folder is the default.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dist_train.errors import ConfigError, NotFoundError

Split = Literal["train", "evaluation"]
Sample = tuple[torch.Tensor, torch.Tensor]

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
_PREFIXES = {"train": "train", "evaluation": "t10k"}
_UNSIGNED_BYTE = 0x08


class IdxImages(Dataset[Sample]):
    """Samples (image float32 [1, height, width] in 0..1, label int64 []).

    Args:
        split: "train" (files `train-*`) or "evaluation" (files `t10k-*`).
        folder: holds `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`, each also as .gz;
            default: where Debian's dataset-fashion-mnist puts them.
        limit: only the first so many images.

    Raises:
        NotFoundError: the folder or a file is missing; ConfigError: a file is not a valid IDX file.
    """

    deterministic_items = True

    def __init__(self, split: Split = "train", folder: str | None = None, limit: int | None = None) -> None:
        if split not in _PREFIXES:
            raise ConfigError(f"split {split!r} does not exist", hint='give "train" or "evaluation"')
        if limit is not None and limit < 1:
            raise ConfigError(f"limit {limit} leaves no image", hint="raise it, or leave it out")
        place = Path(FASHION_MNIST if folder is None else folder).expanduser()
        images = read_idx(_find(place, _PREFIXES[split], "images"), dimensions=3)
        labels = read_idx(_find(place, _PREFIXES[split], "labels"), dimensions=1)
        if len(images) != len(labels):
            raise ConfigError(
                f"{place}: {len(images)} {split} images, {len(labels)} labels",
                cause="the two files do not belong together",
                hint="copy both from one place again",
            )
        if not len(images):
            raise ConfigError(f"{place} holds no {split} image", hint="copy the files again")
        self.images = torch.from_numpy(images[:limit])
        self.labels = torch.from_numpy(labels[:limit].astype(np.int64))
        digest = hashlib.blake2b(images[:limit].tobytes() + labels[:limit].tobytes(), digest_size=8)
        self.dataset_id = f"idx-1/{digest.hexdigest()}/{split}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.images[index].float().div_(255)[None], self.labels[index]

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """Read many samples: one gather instead of one conversion per image."""
        chosen = torch.tensor(indices)
        images = self.images[chosen].float().div_(255)[:, None]
        return list(zip(images.unbind(), self.labels[chosen].unbind(), strict=True))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes.

    It begins with two zero bytes, the type, the number of dimensions, and their sizes (u32, big-endian).

    Args:
        path: the file; `.gz` is opened as such.
        dimensions: how many it must have.

    Raises:
        ConfigError: it cannot be read, is of another kind, or its length does not match its header.
    """
    raw = _bytes(path)
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise _not_idx(path, f"it begins with {raw[:4].hex(' ') or 'nothing'}, not with 00 00")
    kind, count = raw[2], raw[3]
    if kind != _UNSIGNED_BYTE:
        raise _not_idx(path, f"its values are of type 0x{kind:02x}; only 0x08, unsigned bytes, is read")
    if count != dimensions:
        raise _not_idx(path, f"it has {count} dimensions, not {dimensions}: images and labels mixed up?")
    start = 4 + 4 * count
    if len(raw) < start:
        raise _not_idx(path, f"it ends within its header, after {len(raw)} bytes")
    sizes = struct.unpack(f">{count}I", raw[4:start])
    if len(raw) - start != math.prod(sizes):
        shape = " x ".join(map(str, sizes))
        raise _not_idx(path, f"its header gives {shape} bytes, and {len(raw) - start} follow: truncated?")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(sizes).copy()


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        look = f"gzip -t {path}   (tests it)" if path.suffix == ".gz" else f"ls -lL {path}"
        raise ConfigError(f"{path} cannot be read", cause=str(error), hint=look) from None


def _find(folder: Path, prefix: str, what: Literal["images", "labels"]) -> Path:
    dimensions = {"images": 3, "labels": 1}[what]
    names = [f"{prefix}-{what}{dot}idx{dimensions}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
    install = "sudo apt-get install dataset-fashion-mnist"
    try:
        present = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        raise _no_folder(folder, install) from None
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read",
            cause=error.strerror,
            hint=f"ls -ld {folder}   (shows who may)",
        ) from None
    for name in names:
        if name in present:
            return folder / name
    raise NotFoundError(
        f"{folder} has no {names[0]}",
        cause=f"nor {', '.join(names[1:])}; it holds {_listed(present)}",
        hint=f"rename the files as MNIST's are; Fashion-MNIST: {install}, and leave `folder` out",
    )


def _no_folder(folder: Path, install: str) -> NotFoundError:
    if folder == Path(FASHION_MNIST):
        return NotFoundError(
            f"no folder {folder}, where Debian keeps Fashion-MNIST",
            hint=f"{install}   (or give `folder`: one with MNIST's file names)",
        )
    return NotFoundError(
        f"no folder {folder}",
        cause="images are read from files of MNIST's names in it",
        hint=f"check `folder`; Fashion-MNIST: {install}, and leave `folder` out",
    )


def _listed(present: set[str]) -> str:
    names = sorted(present)
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "") if names else "nothing"


def _not_idx(path: Path, cause: str) -> ConfigError:
    return ConfigError(
        f"{path} is no IDX file of {'images' if 'images' in path.name else 'labels'}",
        cause=cause,
        hint="copy it from its source again",
    )
