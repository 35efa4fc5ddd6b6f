"""Imports without the cyclic collector: its state afterwards, what it leaves alone, who imports so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

CONFIG = """
model: {target: "mine:net"}
data: {train: {target: "mine:data"}, batch_size: 4}
loss: torch.nn.functional:cross_entropy
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {steps: 1}
"""
# What a user's module finds, while the rank imports it.
MINE = """
import gc, os
print("collector", gc.isenabled(), "frozen", gc.get_freeze_count() > 200_000)
print("sees", "Mine" in [type(found).__name__ for found in gc.get_objects()])
class Mine: pass
kept = Mine()
print("sees", "Mine" in [type(found).__name__ for found in gc.get_objects()])
os._exit(41)
"""
# At the end of the process: the object is in a cycle, and the module's functions hold its globals.
ENDS = """
import os, sys
class Mine:
    def __init__(self):
        self.cycle = self
    def __del__(self, write=os.write):
        write(1, b"finalized\\n")
kept = Mine()
def net(): sys.exit("left")
data = net
"""
STATES = """
import gc
from dist_train.jobs.frozen_imports import frozen_imports, without_collector
with without_collector():
    assert not gc.isenabled()
assert gc.isenabled()
assert gc.get_freeze_count() == 0
try:
    with frozen_imports():
        raise ImportError
except ImportError:
    pass
assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
with frozen_imports():
    assert not gc.isenabled()
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
gc.disable()
with frozen_imports():
    pass
assert not gc.isenabled(), "the user's own setting"
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-u", "-P", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_collector_is_as_it_was(tmp_path: Path) -> None:
    done = run("-c", STATES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_config_rank_exempts_torch_and_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "run.yaml").write_text(textwrap.dedent(CONFIG))
    done = run("-m", "dist_train.entrypoint", "run.yaml", "--folder", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 41, done.stderr
    assert done.stdout.splitlines() == ["collector True frozen True", "sees False", "sees True"], done.stderr


def test_what_a_config_ranks_module_keeps_is_finalized_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENDS)
    (tmp_path / "run.yaml").write_text(textwrap.dedent(CONFIG))
    done = run("-m", "dist_train.entrypoint", "run.yaml", "--folder", str(tmp_path), cwd=tmp_path)
    assert "left" in done.stderr
    assert done.stdout.splitlines() == ["finalized"], done
