"""Notices of the Kubernetes launcher to a person, on stderr: its only module that prints them."""

from __future__ import annotations

import sys


def print_notice(text: str) -> None:
    """Print one line to stderr."""
    print(f"[dist-train] {text}", file=sys.stderr, flush=True)
