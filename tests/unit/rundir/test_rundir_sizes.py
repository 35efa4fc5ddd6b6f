"""Sizes as people write them."""

from __future__ import annotations

import pytest

from dist_train.rundir.format_amounts import parse_size


def test_a_size_reads_back() -> None:
    assert [parse_size(text) for text in ("64K", "1.5M", "4G", "2TiB", "3GB")] == [
        64 << 10,
        3 << 19,
        4 << 30,
        2 << 40,
        3 << 30,
    ]
    for wrong in ("", "4", "G", "-1G", "4 G", "4g", "1e3M"):
        with pytest.raises(ValueError, match="such as 512M"):
            parse_size(wrong)
