"""Names inside a checkpoint directory: committed steps, staging areas, leavings, the quarantine."""

from __future__ import annotations

import os
import re
from pathlib import Path

MANIFEST = "manifest.json"
STATE_JSON = "state.json"
FENCE = "fence.json"
QUARANTINE = "quarantine"

_STEP = re.compile(r"step-(\d{8,})")
_LEAVING = re.compile(r"\.(?:step-\d+\.(?:tmp|old)|fence\.json\.tmp)-(\d+)")


def step_name(step: int) -> str:
    """`step-00000007`."""
    return f"step-{step:08d}"


def staging_name(step: int, attempt: int) -> str:
    """Where attempt `attempt` writes step `step` before it is renamed into place."""
    return f".step-{step}.tmp-{attempt}"


def leaving_name(step: int, attempt: int) -> str:
    """What a checkpoint is called while it is being removed: no reader takes it for one."""
    return f".step-{step}.old-{attempt}"


def parse_step(name: str) -> int | None:
    """The step of a committed checkpoint's directory name, else None."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None


def parse_leftover(name: str) -> int | None:
    """The attempt that made a staging area or a leaving, else None."""
    match = _LEAVING.fullmatch(name)
    return int(match[1]) if match else None


def step_directories(directory: Path) -> dict[int, Path]:
    """Every `step-<n>` below `directory`, in rising order; empty if there is no such directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    found = {step: directory / name for name in names if (step := parse_step(name)) is not None}
    return dict(sorted(found.items()))


def leftovers(directory: Path, attempt: int) -> list[Path]:
    """What attempts up to and including `attempt` began and did not end."""
    found = []
    for name in os.listdir(directory):
        maker = parse_leftover(name)
        if maker is not None and maker <= attempt:
            found.append(directory / name)
    return sorted(found)
