"""IDX files: MNIST's names, plain or gzipped; an error for each way in which a file can be wrong."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dist_train.datasets import idx
from dist_train.datasets.idx import IdxImages
from dist_train.errors import ConfigError, NotFoundError

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3) * 4
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def idx_bytes(values: NDArray[np.uint8], kind: int = 8) -> bytes:
    return (
        bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    )


def write(folder: Path, prefix: str = "train", dot: str = "-", packed: bool = False) -> None:
    for name, values in ((f"images{dot}idx3-ubyte", IMAGES), (f"labels{dot}idx1-ubyte", LABELS)):
        raw = idx_bytes(values)
        path = folder / f"{prefix}-{name}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(raw) if packed else raw)


@pytest.mark.parametrize(("dot", "packed"), [("-", False), ("-", True), (".", False), (".", True)])
def test_every_spelling_of_the_files_is_read(tmp_path: Path, dot: str, packed: bool) -> None:
    write(tmp_path, dot=dot, packed=packed)
    write(tmp_path, "t10k", dot=dot, packed=packed)
    train = IdxImages("train", str(tmp_path))
    image, label = train[4]
    assert (len(train), image.dtype, image.shape, label.dtype) == (5, torch.float32, (1, 4, 3), torch.int64)
    assert torch.equal(image[0], torch.from_numpy(IMAGES[4]) / 255)
    assert [int(train[index][1]) for index in range(5)] == LABELS.tolist()
    many = train.__getitems__([4, 0])
    assert torch.equal(many[0][0], image)
    assert int(many[1][1]) == 3
    assert IdxImages("evaluation", str(tmp_path)).dataset_id != train.dataset_id


def test_limit_keeps_the_first_and_is_part_of_the_identity(tmp_path: Path) -> None:
    write(tmp_path)
    few = IdxImages("train", str(tmp_path), limit=2)
    assert few.labels.tolist() == [3, 1]
    assert few.dataset_id != IdxImages("train", str(tmp_path)).dataset_id
    assert (
        IdxImages("train", str(tmp_path), limit=99).dataset_id == IdxImages("train", str(tmp_path)).dataset_id
    )
    with pytest.raises(ConfigError, match="limit 0"):
        IdxImages("train", str(tmp_path), limit=0)
    with pytest.raises(ConfigError, match="'test'"):
        IdxImages("test", str(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("train-images-idx3-ubyte", idx_bytes(IMAGES)[:-1], "4 x 3 bytes, and 59 follow: truncated"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES) + b"!", "and 61 follow"),
        ("train-images-idx3-ubyte", b"\x89PNG\r\n", "begins with 89 50 4e 47, not with 00 00"),
        ("train-images-idx3-ubyte", b"", "begins with nothing"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES)[:9], "ends within its header, after 9 bytes"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES, kind=13), "type 0x0d; only 0x08"),
        ("train-images-idx3-ubyte", idx_bytes(LABELS), "1 dimensions, not 3: images and labels mixed up"),
        ("train-labels-idx1-ubyte", idx_bytes(LABELS[:4]), "5 train images, 4 labels"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx_bytes(IMAGES), mtime=0)[:-9], "cannot be read"),
        ("train-images-idx3-ubyte.gz", b"not gzip", "gzip -t"),
        ("train-images-idx3-ubyte", idx_bytes(IMAGES[:0]), "0 train images, 5 labels"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    write(tmp_path)
    if name.endswith(".gz"):
        (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        IdxImages("train", str(tmp_path))
    assert expected in str(caught.value)


def test_the_error_for_missing_files_has_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "FASHION_MNIST", str(tmp_path / "share"))
    install = "sudo apt-get install dataset-fashion-mnist"
    for folder in (None, str(tmp_path / "share")):  # the default, or named in the config as in the example
        with pytest.raises(NotFoundError) as caught:
            IdxImages("train", folder)
        assert f"no folder {tmp_path}/share, where Debian keeps Fashion-MNIST" in str(caught.value)
        assert install in str(caught.value)
    with pytest.raises(NotFoundError, match=f"no folder {tmp_path}/mine\n") as caught:
        IdxImages("train", str(tmp_path / "mine"))
    assert "check `folder`" in str(caught.value)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cats.jpg").touch()
    with pytest.raises(NotFoundError, match="has no train-images-idx3-ubyte") as caught:
        IdxImages("train", str(tmp_path / "mine"))
    assert "it holds cats.jpg" in str(caught.value)


def test_files_without_an_image_are_no_data_set(tmp_path: Path) -> None:
    write(tmp_path)
    for name, values in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
        (tmp_path / f"train-{name}-ubyte").write_bytes(idx_bytes(values[:0]))
    with pytest.raises(ConfigError, match="holds no train image"):
        IdxImages("train", str(tmp_path))


def test_a_folder_or_file_that_must_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", denied)
        with pytest.raises(ConfigError, match="ubyte cannot be read") as caught:
            IdxImages("train", str(tmp_path))
    assert f"ls -lL {tmp_path}/train-images-idx3-ubyte" in str(caught.value)
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read") as caught:
        IdxImages("train", str(tmp_path))
    assert f"ls -ld {tmp_path}" in str(caught.value)


def test_a_folder_below_the_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand the ~ of `data.train.args.folder=~/mnist`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    write(tmp_path / "mnist")
    assert len(IdxImages("train", "~/mnist")) == 5
