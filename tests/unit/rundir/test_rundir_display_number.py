"""Attempts and epochs count from 0 in records and from 1 for people."""

from __future__ import annotations

from dist_train.rundir.display_number import display_number, recorded_index


def test_the_first_attempt_is_number_1() -> None:
    assert display_number(0) == 1
    assert display_number(None) is None


def test_a_displayed_number_finds_its_record() -> None:
    assert [recorded_index(display_number(index)) for index in range(3)] == [0, 1, 2]
