"""The first code of a rank, by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from started_rank import run_forked

WAITS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
signal.sigtimedwait([], 10)
"""


def test_a_rank_can_be_interrupted_though_its_shell_ignores_sigint(tmp_path: Path) -> None:
    """`dist-train launch … &` in a script: POSIX has the shell ignore SIGINT for it."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    rank = [
        sys.executable,
        "-P",
        "-m",
        "dist_train.agent.workers.worker_main",
        str(os.getpid()),
        "script",
        str(script),
    ]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *rank]
    done = subprocess.run(in_background, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (130, True), done


@pytest.mark.parametrize("last", ["", "raise SystemExit"])
def test_a_script_whose_last_losses_were_not_finite_ends_with_73(tmp_path: Path, last: str) -> None:
    script = (
        "import torch, dist_train as dt\n"
        'run = dt.init(seed=0, device="cpu")\n'
        "run.check_finite(torch.tensor(1.0))\n"
        'run.check_finite(torch.tensor(float("nan")))\n' + last
    )
    code, said = run_forked(tmp_path, script)
    assert (code, "call 2: the loss is not finite" in said) == (73, True), said


def test_a_scripts_globals_are_those_of_a_plain_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "for name in sorted(globals()):\n"
        "    kind = type(globals()[name]).__name__\n"
        "    print(name, kind, globals()[name] if kind == 'str' else '')\n"
        "print(__loader__.get_data(__file__)[:8])\n"
    )
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    plain, ours = (
        subprocess.run([*words, str(script)], capture_output=True, text=True, timeout=60).stdout
        for words in ([sys.executable], rank)
    )
    assert "SourceFileLoader" in plain
    assert ours == plain
