"""Numbers as people read them: attempts and epochs count from 1.

Records, `--json` and folder names (`logs/attempt-0`) count from 0; every text for people (`status`, `list`,
`logs`, the live panel, the failure block, progress lines) converts with these functions, and only there.
"""

from __future__ import annotations

from typing import TypeVar

Index = TypeVar("Index", int, int | None)


def display_number(index: Index) -> Index:
    """The number shown for an attempt or epoch that records count from 0; None where there is none."""
    return None if index is None else index + 1


def recorded_index(number: int) -> int:
    """The inverse: the record's index of an attempt that a person gives by its displayed number."""
    return number - 1
