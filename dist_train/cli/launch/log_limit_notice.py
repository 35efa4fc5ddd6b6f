"""A word about logs that may grow beyond the disk they are on."""

from __future__ import annotations

import os
from pathlib import Path

from dist_train.rundir.format_amounts import size
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES


def log_limit_notice(limit_bytes: int, run_dir: Path) -> list[str]:
    """Say where a chosen limit of one log is larger than the disk of the run directory, as seen here."""
    if limit_bytes == DEFAULT_LIMIT_BYTES:
        return []
    folder = next(folder for folder in (run_dir, *run_dir.parents) if folder.exists())
    disk = os.statvfs(folder)
    total = disk.f_blocks * disk.f_frsize
    if limit_bytes <= total:
        return []
    return [
        f"--log-limit {size(limit_bytes)} is more than the disk of {folder} holds ({size(total)}): when it "
        "is full, log lines are dropped and counted, and the run goes on"
    ]
