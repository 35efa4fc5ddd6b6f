"""Parse resource quantities: `500m`, `2`, `8Gi`, `1e3`.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"^(?P<number>[+-]?(\d+\.?\d*|\.\d+))(?P<unit>m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$")
_POWERS = {letter: power for power, letter in enumerate("KMGTPE", start=1)}


def quantity(text: object) -> Decimal:
    """Parse a quantity; raises ValueError."""
    found = _FORM.match(str(text))
    if found is None:
        raise ValueError("quantities must match the regular expression")
    number, unit = Decimal(found["number"]), found["unit"] or ""
    if unit == "m":
        return number / 1000
    if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei":
        return number.scaleb(int(unit[1:]))
    if not unit:
        return number
    base = 1024 if unit.endswith("i") else 1000
    return number * Decimal(base) ** _POWERS[unit[0].upper()]
