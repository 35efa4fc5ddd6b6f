"""Texts that are cut in the middle."""

from __future__ import annotations

from dist_train.rundir.log_text.shorten_text import shorten_text


def test_head_and_tail_are_kept_and_the_rest_is_counted() -> None:
    text = "head" + "x" * 1000 + "tail"
    assert shorten_text(text, 8) == "head … [1,000 characters left out] … tail"
    assert shorten_text(text, 7) == "head … [1,001 characters left out] … ail"
    assert shorten_text(text, 8, "a.log") == "head … [1,000 characters left out: all are in a.log] … tail"


def test_a_text_within_the_limit_is_unchanged() -> None:
    assert shorten_text("abcdefgh", 8) == "abcdefgh"
