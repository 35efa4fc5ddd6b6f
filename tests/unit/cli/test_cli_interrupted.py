"""Ctrl-C ends the command with 130 wherever it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from dist_train.cli import main
def interrupted(*args, **named): exec("raise KeyboardInterrupt")
{place} = interrupted
main.main(["status"])
"""


@pytest.mark.parametrize("place", ["main.run", "main.cli.main", "main.prewarming"])
def test_an_interrupt_within_code_that_is_made_from_text(tmp_path: Path, place: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(place=place))
    words = [sys.executable, "-m", "program"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
