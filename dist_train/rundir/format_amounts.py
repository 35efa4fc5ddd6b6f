"""Bytes and durations as short text, and sizes from text."""

from __future__ import annotations

import math
import re

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Format bytes: `812 B`, `1.3 MiB`."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"


def parse_size(text: str) -> int:
    """Read a size in bytes: `512M`, `4G`, `1.5T`, each times 1024; raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", text.strip())
    if found is None:
        raise ValueError("expected a number with K, M, G or T, such as 512M or 4G")
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1))


def parse_file_size(text: str) -> int:
    """Read a size as other tools write it: `5GB` (10^9 each), `2GiB` (2^30 each); raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", text.strip())
    if found is None:
        raise ValueError("expected a number with KB, MB, GB, TB or KiB, MiB, GiB, TiB, such as 5GB")
    count = int(float(found[1]) * (1024 if found[3] else 1000) ** ("KMGT".index(found[2]) + 1))
    if not count:
        raise ValueError("it is less than a byte")
    return count


def clock(seconds: float) -> str:
    """Format seconds: `0:42`, `12:30`, `1:02:33`, `2 d 03:10`; `-` for nan and infinity."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
