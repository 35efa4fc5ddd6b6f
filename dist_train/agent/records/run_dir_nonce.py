"""Whether all nodes see the same run directory: node 0 writes a nonce there, each node reads it back."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from dist_train.agent.settings import Settings
from dist_train.rundir.records import write_bytes_atomic

# Of all nodes, where each has a run directory of its own: one that shares its own with node 0 is refused.
_OWN = "own"
_TRIES_S = 10.0
_POLL_S = 0.2


def write_nonce(settings: Settings) -> str:
    """Node 0: write a new nonce and return it."""
    if settings.run_key:
        return _OWN
    nonce = secrets.token_hex(8)
    write_bytes_atomic(_path(settings), nonce.encode())
    return nonce


def read_nonce(settings: Settings) -> str:
    """Read what node 0 wrote; empty after 10 s, as in a directory that is not shared."""
    if settings.run_key:
        return _OWN
    path = _path(settings)
    deadline = time.monotonic() + _TRIES_S
    while True:
        try:
            os.listdir(path.parent)  # NFS caches an earlier start's file; listing asks the server again
            return path.read_text()
        except OSError:
            if time.monotonic() > deadline:
                return ""
            time.sleep(_POLL_S)


def _path(settings: Settings) -> Path:
    return settings.run.control / f"nonce-{settings.job}"
