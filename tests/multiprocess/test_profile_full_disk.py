"""`launch --profile` in a run directory whose disk has no room for the trace: the training is not hurt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

# Steps of LBFGS have many operators: torch's export of 43 of them has some megabytes.
SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
inputs = torch.randn(8, 4)
def loss():
    optimizer.zero_grad()
    value = (model(inputs) ** 2).sum()
    value.backward()
    return value
for step in range(60):
    optimizer.step(loss)
print("trained", flush=True)
"""
ON_A_SMALL_DISK = """
set -u
mkdir {disk}
mount -t tmpfs -o size=200k tmpfs {disk} || exit 99
{python} -m dist_train.cli.main launch --device cpu --run-dir {disk}/run --profile 3:45 {script}
echo code=$?
find {disk}/run/profile -type f | sed s/^/left=/
"""


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_disk_without_space_for_the_trace_does_not_end_the_training(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.fail("needs root and unshare(1), for a tmpfs in a private mount namespace")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = {"disk": tmp_path / "small", "python": sys.executable, "script": tmp_path / "train.py"}
    command = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK.format(**words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert "code=0" in done.stdout, done
    assert "trained" in done.stdout
    assert "left=" not in done.stdout
    assert done.stderr.count("no profile: No space left on device") == 1, done.stderr
    assert "NOT KEPT" not in done.stderr
