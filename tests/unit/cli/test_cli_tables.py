"""Aligned text, ages and sizes."""

from __future__ import annotations

import json

import pytest

from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import age, number, render_pairs, render_table, size


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert render_table(("A", "LONG"), [("xyz", "1"), ("", "22")]) == "A    LONG\nxyz  1\n     22"


def test_a_value_of_several_lines_is_indented() -> None:
    assert render_pairs([("a", "1"), ("next", "x\ny")]) == "a     1\nnext  x\n      y"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (86400, "24 h"),
        (172800, "2 d"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_sizes_and_figures() -> None:
    assert [size(n) for n in (0, 1023, 1024, 3 << 20, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5120.0 TiB",
    ]
    assert [number(n) for n in (None, 3, 0.1234567891)] == ["-", "3", "0.123457"]


def test_json_has_no_nan_and_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("inf"), "b": (1, {"c": float("nan")})})
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "a": "inf", "b": [1, {"c": "nan"}]}
