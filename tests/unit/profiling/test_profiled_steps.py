"""The words of `--profile` and `--profile-ranks`."""

from __future__ import annotations

import pytest

from dist_train.profiling.profiled_steps import (
    DEFAULT,
    MOST_STEPS,
    ProfiledSteps,
    is_profiled,
    parse_ranks,
    parse_steps,
)


def test_steps_are_a_range_with_both_ends_one_step_or_none() -> None:
    assert parse_steps("10:15") == ProfiledSteps(10, 15)
    assert parse_steps("12") == ProfiledSteps(12, 12)
    assert parse_steps("none") is None
    default = parse_steps(DEFAULT)
    assert default is not None
    assert (default.count, str(default)) == (5, DEFAULT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5:3", "did you mean 3:5"),
        ("1:4", "try 3:6"),
        ("0", "try 3:3"),
        ("2:900", f"try 3:{MOST_STEPS + 2}"),
        ("10:100", "91 steps are too many.*try 10:59"),
        ("ten", "expected FIRST:LAST"),
        ("3:4:5", "expected FIRST:LAST"),
        ("3:", "expected FIRST:LAST"),
        ("", "expected FIRST:LAST"),
    ],
)
def test_what_cannot_be_profiled_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_steps(text)


def test_ranks_are_a_list_or_all() -> None:
    assert parse_ranks("0,3") == {0, 3}
    assert parse_ranks("all") is None
    assert [is_profiled("1,3", rank) for rank in range(4)] == [False, True, False, True]
    assert is_profiled("all", 511)
    for text in ("", "first", "0,", "-1", "0-3"):
        with pytest.raises(ValueError, match="expected `all` or ranks"):
            parse_ranks(text)
