"""What is shown of the ranks' output."""

from __future__ import annotations

import io

import pytest

from dist_train.agent.workers import rank_output
from dist_train.agent.workers.rank_output import RankOutput


def shown(lines: list[tuple[int, bool, str]], show: str = "0") -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    output = RankOutput("gpu01", show, out, err)
    for rank, is_stderr, text in lines:
        output.line(rank, is_stderr, text)
    output.flush()
    return out.getvalue(), err.getvalue()


def test_rank_0s_stdout_is_shown_as_it_is_and_the_others_not() -> None:
    assert shown([(0, False, "epoch 1"), (1, False, "epoch 1")])[0] == "epoch 1\n"
    assert shown([(0, False, "a"), (3, False, "b")], "all")[0] == "[rank 0 gpu01] a\n[rank 3 gpu01] b\n"


def test_the_same_line_of_several_ranks_is_shown_once() -> None:
    lines = [(rank, True, "warning: slow") for rank in (1, 2, 3)]
    assert shown(lines)[1] == "[ranks 1-3 gpu01] warning: slow\n"


def test_folding_keeps_each_ranks_order_and_its_own_repetitions() -> None:
    lines = [(0, True, "a"), (0, True, "b"), (0, True, "a"), (1, True, "a"), (1, True, "b")]
    assert shown(lines)[1].splitlines() == [
        "[ranks 0-1 gpu01] a",
        "[ranks 0-1 gpu01] b",
        "[rank 0 gpu01] a",
    ]


def test_a_held_line_is_shown_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    output = RankOutput("h", "0", out, err)
    output.line(2, True, "x")
    output.tick()
    assert err.getvalue() == ""
    monkeypatch.setattr(rank_output, "_FOLD_S", 0.0)
    output.tick()
    assert err.getvalue() == "[rank 2 h] x\n"
