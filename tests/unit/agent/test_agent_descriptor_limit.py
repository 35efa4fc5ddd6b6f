"""Node 0's limit of open files: raised for its connections, given back to ranks, refused where too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, subprocess, sys
from pathlib import Path
from dist_train.agent import descriptor_limit
from dist_train.agent.workers.rank import start_rank
from dist_train.agent.workers.rank_log import RankLog

soft, hard, connections = (int(word) for word in sys.argv[1:4])
folder = Path(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
descriptor_limit.raise_descriptor_limit(connections)
(folder / "t.py").write_text("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")
rank = start_rank(0, 0, ["script", str(folder / "t.py")], os.environ, folder / "e", RankLog(folder, 0))
print(resource.getrlimit(resource.RLIMIT_NOFILE), rank.process.stdout.read().decode())
"""


def run(folder: object, soft: int, hard: int, connections: int) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in (soft, hard, connections, folder)]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_node_0_raises_its_limit_and_ranks_get_the_one_before(tmp_path: object) -> None:
    assert run(tmp_path, 512, 1000, 600).stdout.split() == ["(1000,", "1000)", "(512,", "1000)"]


def test_a_hard_limit_that_is_too_low_is_refused_with_its_cause(tmp_path: object) -> None:
    error = run(tmp_path, 512, 1000, 1040).stderr
    assert "may open 1000 files and connections and needs 1296" in error
    assert "ulimit -Hn" in error


@pytest.mark.parametrize("connections", [1, 700])
def test_an_unchanged_limit_is_given_to_ranks_too(tmp_path: object, connections: int) -> None:
    assert run(tmp_path, 1000, 1000, connections).stdout.split() == ["(1000,", "1000)", "(1000,", "1000)"]
