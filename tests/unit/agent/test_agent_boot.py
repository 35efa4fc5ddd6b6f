"""The first code of a rank, by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WAITS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
signal.sigtimedwait([], 10)
"""


def test_a_rank_can_be_interrupted_though_the_shell_that_began_it_ignores_sigint(tmp_path: Path) -> None:
    """`dist-train launch … &` in a script: POSIX has the shell ignore SIGINT for it."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    rank = [sys.executable, "-P", "-m", "dist_train.agent.boot", str(os.getpid()), "script", str(script)]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *rank]
    done = subprocess.run(in_background, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (130, True), done
