"""A launch that hangs in a test prints the stacks of its ranks and of their loader workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.testing import launch_cli
from dist_train.testing.command import CliTimedOut

SCRIPT = """
import os, time, torch
from torch.utils.data import DataLoader

class Stuck:
    def __len__(self): return 4
    def __getitem__(self, index):
        time.sleep(300)

next(iter(DataLoader(Stuck(), num_workers=1)))
"""


@pytest.mark.multiprocess
@pytest.mark.proof
def test_a_launch_that_hangs_shows_the_stacks_of_ranks_and_of_loader_workers(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(SCRIPT)
    # Long enough for a busy machine to reach the loader: 20 s were not, under a load of 20.
    with pytest.raises(CliTimedOut) as error:
        launch_cli(["launch", "--device", "cpu", "stuck.py"], cwd=tmp_path, timeout_s=30)
    assert "in __getitem__" in error.value.partial.stderr, "the worker's"
    assert "in _try_get_data" in error.value.partial.stderr, "the rank's"
