"""Digits and text windows: sizes, splits, types, identity."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from dist_train.datasets import digits
from dist_train.datasets.digits import Digits
from dist_train.datasets.text import TextBytes
from dist_train.errors import ConfigError


def test_digits_hold_out_a_fifth_of_each_digit() -> None:
    train, held_out = digits.train(), digits.evaluation()
    assert (len(train), len(held_out)) == (1438, 359)
    assert torch.bincount(torch.cat([train.labels, held_out.labels])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert set(torch.bincount(held_out.labels).tolist()) <= {35, 36, 37}
    assert train.dataset_id != held_out.dataset_id


def test_digits_samples_have_the_stated_types_and_range() -> None:
    train = Digits("train")
    image, label = train[0]
    assert (image.dtype, image.shape, label.dtype, label.shape) == (torch.float32, (1, 8, 8), torch.int64, ())
    assert (float(train.images.min()), float(train.images.max())) == (0.0, 1.0)
    many = train.__getitems__([5, 0, 7])
    assert all(
        torch.equal(a, b)
        for pair, i in zip(many, [5, 0, 7], strict=True)
        for a, b in zip(pair, train[i], strict=True)
    )
    with pytest.raises(ConfigError, match="'test'"):
        Digits("test")  # type: ignore[arg-type]


def test_augmented_digits_shift_by_a_pixel_drawn_from_torchs_generator() -> None:
    plain, augmented = Digits(), Digits(augment=True)
    assert plain.deterministic_items
    assert not augmented.deterministic_items
    torch.manual_seed(0)
    shifted = [augmented[3][0] for _ in range(60)]
    assert len({tuple(image.flatten().tolist()) for image in shifted}) == 9
    assert any(torch.equal(image, plain[3][0]) for image in shifted)
    torch.manual_seed(0)
    again = augmented.__getitems__([3] * 60)
    assert all(torch.equal(a, b) for a, (b, _) in zip(shifted, again, strict=True))


def test_the_data_file_has_its_attribution_beside_it() -> None:
    attribution = files("dist_train.datasets").joinpath("files", "ATTRIBUTION.md").read_text()
    for word in ("CC BY 4.0", "Alpaydin", "Kaynak", "archive.ics.uci.edu/dataset/80", "nothing"):
        assert word in attribution


def test_text_windows_predict_the_next_byte_and_the_tail_is_held_out() -> None:
    text = "".join(chr(97 + i % 26) for i in range(200))
    train, held_out = TextBytes(text, context=8), TextBytes(text, context=8, split="evaluation")
    assert (len(train), len(held_out)) == (22, 2)
    assert bytes(train.tokens.tolist()) + bytes(held_out.tokens.tolist()) == text.encode()
    x, y = train[1]
    assert (x.dtype, x.tolist(), y.tolist()) == (
        torch.int64,
        list(text.encode()[8:16]),
        list(text.encode()[9:17]),
    )
    many = train.__getitems__([1, 21])
    assert torch.equal(many[0][0], x)
    assert torch.equal(many[1][1], train[21][1])
    with pytest.raises(IndexError, match="22"):
        train[22]


def test_stride_and_text_are_part_of_the_identity(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world " * 30)
    from_path = TextBytes(path=str(tmp_path / "a.txt"), context=8)
    assert from_path.dataset_id == TextBytes("hello world " * 30, context=8).dataset_id
    dense = TextBytes("hello world " * 30, context=8, stride=1)
    assert len(dense) == 324 - 8
    assert len({from_path.dataset_id, dense.dataset_id, TextBytes("other " * 60, context=8).dataset_id}) == 3


def test_the_default_text_is_cpython_s_help_topics() -> None:
    text = TextBytes()
    assert len(text) > 5000
    assert b"assert" in bytes(text.tokens[:2000].tolist())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": "a", "path": "b"}, "both a text and a path"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"text": "too short"}, "9 bytes, fewer than one window of 65"),
        ({"context": 0}, "context 0"),
        ({"split": "test"}, "'test'"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        TextBytes(**options)  # type: ignore[arg-type]
