"""`kill -9` of an agent in the first seconds of a run: before it listens, connects, joins, starts ranks."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from conftest import Finished, begin, nothing_left, wait_for
from run_processes import agents

from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess
SCRIPT = "import time\ntime.sleep({seconds})\nprint('done')\n"
# A start under load, the bound within which a lost agent is answered, another start, the script.
WITHIN_S = 75
SEED = 12


def killed_after(folder: Path, node: int, seconds: float) -> None:
    """Launch 2 x 1, kill one agent so long after both were started; the run must end as if nothing was."""
    # Long enough that the kill comes before the end.
    (folder / "train.py").write_text(SCRIPT.format(seconds=seconds + 1))
    run = RunDir(folder / "runs" / "killed")
    command = begin(
        folder, "killed", "--nodes", 2, "--gpus-per-node", 1, folder / "train.py", new_interpreter=True
    )
    try:
        wait_for(lambda: len(agents(run)) == 2, "two agents")
        time.sleep(seconds)
        os.kill(agents(run)[node], signal.SIGKILL)
        killed_at = time.monotonic()
        assert command.wait(timeout=WITHIN_S) == 0, (folder / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    text = (folder / "out.txt").read_text()
    assert "a node was lost: starting all nodes again" in text, text
    assert f"waiting for node {node} since" not in text, f"{time.monotonic() - killed_at:.0f} s\n{text}"
    finished = Finished(None, run)  # type: ignore[arg-type]
    assert nothing_left(finished.run_id)


@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_dies_at_once_is_answered(tmp_path: Path, node: int) -> None:
    killed_after(tmp_path, node, 0.0)


@pytest.mark.proves(
    "`kill -9` of an agent at a random moment of the first 5 s: all nodes are started again, the run ends",
    limits="two simulated nodes",
)
@pytest.mark.proof
@pytest.mark.parametrize("number", range(12))
def test_an_agent_that_dies_at_a_random_moment_is_answered(tmp_path: Path, number: int) -> None:
    rng = random.Random(SEED + number)
    killed_after(tmp_path, rng.randrange(2), rng.uniform(0.0, 5.0))
