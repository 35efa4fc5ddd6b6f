"""Warn where /dev/shm, through which loader workers pass their batches, is small."""

from __future__ import annotations

import logging

from dist_train.jobs.machine import shared_memory_bytes

logger = logging.getLogger(__name__)
# Docker's default.
_SMALL_BYTES = 64 << 20
_warned = False


def warn_if_small(workers: int, total: int | None = None) -> None:
    """Log one warning per process if workers are used and /dev/shm has Docker's 64 MiB or less.

    Args:
        total: bytes of /dev/shm; None asks the system.
    """
    global _warned
    total = shared_memory_bytes() if total is None else total
    if _warned or not workers or total is None or total > _SMALL_BYTES:
        return
    _warned = True
    logger.warning(
        "/dev/shm has %d MiB, and %d loader worker(s) hand over their batches there: a bus error may end "
        "them; `docker run --shm-size=8g`, --shm 8Gi on Kubernetes, or workers=0",
        total >> 20,
        workers,
    )
