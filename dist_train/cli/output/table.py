"""Aligned text: tables, ages, sizes; no escape codes."""

from __future__ import annotations

from collections.abc import Sequence

from dist_train.rundir.format_amounts import size as size


def render_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart; nothing trails."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def render_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """`name  value` lines; a value of several lines is indented under its first."""
    width = max(len(name) for name, _ in pairs)
    indent = "\n" + " " * (width + 2)
    return "\n".join(f"{name:<{width}}  {value.replace(chr(10), indent)}".rstrip() for name, value in pairs)


def age(seconds: float | None) -> str:
    """`8 s`, `12 min`, `3 h`, `5 d`; `-` where it is not known."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def number(value: object) -> str:
    """A figure in at most six digits; `-` for none."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
