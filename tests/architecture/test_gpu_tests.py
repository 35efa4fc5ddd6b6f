"""Tests that need a GPU lie in tests/gpu, have their marker, and are never passed over without a word."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from source_tree import ROOT

MARKER = re.compile(r"^(\s*@|pytestmark = \[?)pytest\.mark\.gpu\b", re.MULTILINE)


def test_the_marker_is_used_in_every_file_of_its_folder_and_nowhere_else() -> None:
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if MARKER.search(path.read_text("utf-8"))}
    assert marked
    assert marked == set((ROOT / "tests" / "gpu").glob("test_*.py"))


@pytest.mark.proof
def test_make_test_gpu_says_that_there_is_no_gpu_and_fails() -> None:
    command = [sys.executable, ".ci/test.py", "--gpu"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    assert re.search(r"FAIL  gpu +.* no GPU: \d+ tests not run", done.stdout), done.stdout + done.stderr
