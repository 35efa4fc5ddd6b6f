"""Names inside a checkpoint location: records, staging areas, checkpoints that are being removed."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
STATE_JSON = "state.json"
FENCE = "fence.json"
QUARANTINE = "quarantine"
TENSOR_FILE = ".safetensors"
BLOCKS_FILE = ".blocks"

_LEFTOVER = re.compile(r"\.(?:step-\d+\.(?:tmp|old)|fence\.json\.tmp)-(\d+)")


def blocks_name(name: str) -> str:
    """Name the file that holds the block hashes of a large one."""
    return name + BLOCKS_FILE


def staging_name(step: int, attempt: int) -> str:
    """Name the staging area in which attempt `attempt` writes step `step` before it is committed."""
    return f".step-{step}.tmp-{attempt}"


def removal_name(step: int, attempt: int) -> str:
    """Name a checkpoint while it is being removed: no reader takes it for a checkpoint."""
    return f".step-{step}.old-{attempt}"


def temporary_record(record: str, attempt: int) -> str:
    """Name the file beside a record that is renamed over it."""
    return f".{record}.tmp-{attempt}"


def parse_leftover(name: str) -> int | None:
    """Return the attempt that made a temporary name; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return int(match[1]) if match else None
