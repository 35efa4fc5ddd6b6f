"""Canonical JSON: one form per value, so that any flipped bit of a manifest is detected."""

from __future__ import annotations

import json


def dump_canonical(value: object) -> bytes:
    """Write ASCII JSON with sorted keys and no spaces; NaN and infinities are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def load_canonical(raw: bytes) -> object:
    """Return the value, if `raw` is exactly what `dump_canonical` writes for it.

    Raises:
        ValueError: not JSON, or JSON in any other form.
    """
    value: object = json.loads(raw.decode("ascii"))
    if dump_canonical(value) != raw:
        raise ValueError("not in canonical form")
    return value
