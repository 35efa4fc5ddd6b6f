"""Looking at checkpoints needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checkpoint_cases import saved_run

PROGRAM = """
import sys
import dist_train.checkpoint as checkpoint
lines = checkpoint.list_checkpoints(sys.argv[1])
report = checkpoint.verify_checkpoint(lines[-1].path)
print(len(lines), report.ok, report.manifest.step, any(name.split(".")[0] == "torch" for name in sys.modules))
"""


def test_listing_and_verifying_load_no_torch(tmp_path: Path) -> None:
    saved_run(tmp_path, 2)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "True", "2", "False"]
