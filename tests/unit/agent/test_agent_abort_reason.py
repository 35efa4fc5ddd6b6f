"""Lines of stderr that say why a process aborts itself."""

from __future__ import annotations

import pytest

from dist_train.agent.failures.abort_reason import abort_text, hint_for_abort, tells_of_abort

UNLIKE_SIZES = "  what():  [enforce fail at gloo/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 9 vs 1"


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "terminate called without an active exception",
        UNLIKE_SIZES,
        "python: pair.cc:12: void f(): Assertion `x > 1' failed.",
        "free(): invalid pointer",
        "double free or corruption (out)",
        "*** stack smashing detected ***: terminated",
    ],
)
def test_lines_of_cpp_and_glibc(line: str) -> None:
    assert tells_of_abort(line)


@pytest.mark.parametrize("line", ["Fatal Python error: Aborted", "", "what(): is this?", "terminate"])
def test_other_lines(line: str) -> None:
    assert not tells_of_abort(line)


def test_the_reason_is_what_stands_after_what() -> None:
    assert abort_text(UNLIKE_SIZES).startswith("[enforce fail at gloo")
    assert abort_text("free(): invalid pointer") == "free(): invalid pointer"


def test_unlike_sizes_have_a_hint() -> None:
    assert "unlike sizes" in (hint_for_abort(UNLIKE_SIZES) or "")
    assert hint_for_abort("free(): invalid pointer") is None
