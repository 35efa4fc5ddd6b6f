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


def test_an_interrupt_while_the_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from dist_train.cli.console_script import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
