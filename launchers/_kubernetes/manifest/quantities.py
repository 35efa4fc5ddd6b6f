"""Quantities of Kubernetes, and `--mem` as Slurm reads it: 64G is the same amount on both."""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_MEM = re.compile(r"(\d+(?:\.\d+)?)([KMGT])?(?:i?B|i)?", re.IGNORECASE)
_POWERS = "KMGTPE"


def is_quantity(text: str) -> bool:
    """Whether the text is a quantity: 4, 500m, 16Gi."""
    return _QUANTITY.fullmatch(text) is not None


def mebibytes(quantity: str) -> int:
    """Convert a quantity of memory to MiB, rounded up; raises ValueError for other text."""
    if (found := _QUANTITY.fullmatch(quantity)) is None or found[2] == "m":
        raise ValueError(f"{quantity!r} is not an amount of memory such as 16Gi")
    return ceil(Decimal(found[1]) * _factor(found[2] or "") / 2**20)


def _factor(suffix: str) -> int:
    if not suffix:
        return 1
    base = 1024 if suffix.endswith("i") else 1000
    return int(base ** (_POWERS.index(suffix[0].upper()) + 1))


def mem_mebibytes(mem: str) -> int:
    """Convert `--mem` to MiB as sbatch does: powers of 1024 for every suffix, MiB without one."""
    if (found := _MEM.fullmatch(mem.strip())) is None or Decimal(found[1]) == 0:
        raise ValueError(f"{mem!r} is not an amount of memory such as 64G")
    power = _POWERS.index((found[2] or "M").upper()) - 1
    return ceil(Decimal(found[1]) * Decimal(1024) ** power)


def memory(mib: int) -> str:
    """Convert MiB to a quantity: 64Gi, 1536Mi."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"
