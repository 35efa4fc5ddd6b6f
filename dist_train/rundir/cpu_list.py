"""CPU numbers as text, and what `--bind` says: `0-3,8`, and such lists per local rank: `0-3,8/4-7`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# Far above any machine; without a bound `0-99999999999` would be counted for hours.
_MOST_CPUS = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
BIND_WORDS = ("none", "cores", "numa")


@dataclass(frozen=True)
class Bind:
    """What `--bind` asks for.

    Args:
        lists: with `lists`, the CPUs of each local rank.
    """

    mode: Literal["none", "cores", "numa", "lists"]
    lists: tuple[frozenset[int], ...] = ()


def parse_bind(text: str) -> Bind:
    """Read `none`, `cores`, `numa` or lists of CPUs; raises ValueError that says what is expected."""
    match text:
        case "none" | "cores" | "numa":
            return Bind(text)
    try:
        return Bind("lists", tuple(parse_cpu_list(part) for part in text.split("/")))
    except ValueError as error:
        raise ValueError(
            f"expected none, cores, numa or the CPUs of each local rank, such as 0-3,8/4-7 ({error})"
        ) from None


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read the kernel's form `0-3,8`; raises ValueError."""
    cpus: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"{part[:40]!r} is neither a number nor a range of CPUs")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low or high >= _MOST_CPUS:
            raise ValueError(f"{part} is not a range of CPUs")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """Write the form that `parse_cpu_list` reads; empty for no CPU."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
