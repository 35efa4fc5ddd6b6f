"""What the launcher says to a person: always on stderr."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line."""
    print(f"[dist-train] {text}", file=sys.stderr, flush=True)
