"""Names of checkpoints: `step-00000007`."""

from __future__ import annotations

import re

_STEP = re.compile(r"step-(\d{8,})")


def step_name(step: int) -> str:
    """Name the checkpoint of one step: `step-00000007`."""
    return f"step-{step:08d}"


def parse_step(name: str) -> int | None:
    """Return the step of a checkpoint's name; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None
