"""CPU numbers as text, and the words of `--bind`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_train.rundir.cpu_list import Bind, cpu_list, parse_bind, parse_cpu_list


@given(st.frozensets(st.integers(0, 1000), min_size=1))
def test_a_list_reads_back_equal(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(cpu_list(cpus)) == cpus


def test_lists_are_written_as_the_kernel_does() -> None:
    assert cpu_list({3, 2, 8, 0, 1}) == "0-3,8"
    assert cpu_list(()) == ""


def test_words_and_lists_of_bind() -> None:
    assert [parse_bind(word).mode for word in ("none", "cores", "numa")] == ["none", "cores", "numa"]
    assert parse_bind("0-2,8/4") == Bind("lists", (frozenset({0, 1, 2, 8}), frozenset({4})))


@pytest.mark.parametrize(
    "text",
    ["", "core", "0-3;4-7", "0-3/", "/1", "3-1", "-1", "0x3", "0-", "1,,2", " 1", "0-99999999999", "65536"],
)
def test_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected none, cores, numa or the CPUs of each local rank"):
        parse_bind(text)
