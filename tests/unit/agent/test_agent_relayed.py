"""The report's first line names the error of a loader worker, not thirty lines of traceback."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch._utils import ExceptionWrapper

from dist_train.agent import autopsy
from dist_train.agent.relayed import innermost


class OwnError(Exception):
    pass


def test_the_verdict_says_it_so() -> None:
    rank: Any = SimpleNamespace(returncode=1, overdue=None)
    said = autopsy._classify(rank, "KeyError", relayed(KeyError("label")), ())
    assert said == ("exception", "KeyError: 'label' (in DataLoader worker process 0)")


def relayed(error: Exception) -> str:
    """The text that a rank gets of an error in its loader's worker."""
    try:
        raise error
    except Exception:
        wrapper = ExceptionWrapper(sys.exc_info(), "in DataLoader worker process 0")
    with pytest.raises(Exception, match="Traceback") as raised:
        wrapper.reraise()  # type: ignore[no-untyped-call]
    return str(raised.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such image: 7.png"), "no such image: 7.png (in DataLoader worker process 0)"),
        (KeyError("label"), "'label' (in DataLoader worker process 0)"),
        (OwnError("two\nlines"), "two\nlines (in DataLoader worker process 0)"),
        (ValueError(), "(in DataLoader worker process 0)"),
        (ValueError("ValueError: again"), "ValueError: again (in DataLoader worker process 0)"),
    ],
)
def test_a_loader_workers_error_is_told_in_its_own_words(error: Exception, told: str) -> None:
    assert innermost(relayed(error)) == told


@pytest.mark.parametrize("text", ["", "no such file", "Caught ValueError in a bottle"])
def test_any_other_text_is_left_as_it_is(text: str) -> None:
    assert innermost(text) == text
