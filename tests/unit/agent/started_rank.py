"""A rank on its own, started as the agent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def begin(folder: Path, text: str, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start a rank as the agent does: SIGTERM and SIGUSR2 are blocked."""
    script = folder / "train.py"
    script.write_text(text)
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        return subprocess.Popen(
            [*rank, str(script), *words],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def output_of(rank: subprocess.Popen[str]) -> str:
    try:
        return rank.communicate(timeout=30)[0]
    finally:
        rank.kill()
