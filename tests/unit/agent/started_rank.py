"""A rank on its own, started as the agent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from warm_commands.forked_command import command_server
from warm_commands.warm_launch import COLD


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
        return rank.communicate(timeout=90)[0]
    finally:
        rank.kill()


def run_forked(folder: Path, text: str, *words: str, **environ: str) -> tuple[int, str]:
    """Exit code and output of such a rank whose script needs torch: forked from a process that has it."""
    if os.environ.get(COLD) == "1":
        rank = begin(folder, text, *words, **environ)
        said = output_of(rank)
        return rank.returncode, said
    script, output = folder / "train.py", folder / "said"
    script.write_text(text)
    with output.open("wb") as file:
        environ = {**os.environ, **environ}
        forked = command_server().start_rank(
            [str(script), *words], str(Path.cwd()), environ, file.fileno(), file.fileno()
        )
        try:
            code = forked.wait(90)
        finally:
            forked.kill()
    return code, output.read_text()
