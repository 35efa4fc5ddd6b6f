"""Sizes as people write them."""

from __future__ import annotations

import pytest

from dist_train.rundir.format_amounts import parse_file_size, parse_size


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


def test_the_size_of_a_file_is_in_powers_of_ten_unless_it_says_otherwise() -> None:
    sizes = ("5GB", "1.5 MB", "2KiB", "1TB", "0.001KB")
    assert [parse_file_size(text) for text in sizes] == [5 * 10**9, 1_500_000, 2048, 10**12, 1]
    for wrong in ("", "4", "5G", "GB", "-1GB", "5gb", "1e3MB", "0GB", "0.0001KB"):
        with pytest.raises(ValueError, match=r"(such as 5GB|less than a byte)"):
            parse_file_size(wrong)
