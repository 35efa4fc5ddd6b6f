"""However a run ends, its process exits: cleanly, by exception, by sys.exit, with a dead peer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Container
from contextlib import ExitStack
from pathlib import Path

import pytest
from warm_commands.forked_command import command_server
from warm_commands.warm_launch import COLD

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import os, sys, torch, dist_train as dt
run = dt.init(seed=0, device="cpu", init_method=sys.argv[1], timeout_s=20)
model = dt.prepare(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), .1)
loss = model(torch.randn(3, 4)).sum()
loss.backward()
optimizer.step()
{last}
print("last line")
"""


def _run(
    tmp_path: Path, last: str, n: int = 2, new_interpreters: Container[int] = ()
) -> tuple[list[int], list[str], float]:
    """Exit code and output of each rank, and the seconds.

    Args:
        new_interpreters: ranks that are started as a user does, the others as forks of a process that has
            imported torch.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(last=last))
    outputs = [tmp_path / f"said-{rank}" for rank in range(n)]
    words = [str(script), f"file://{tmp_path}/meeting"]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in outputs]
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                [sys.executable, *words], env=_environ(rank, n), stdout=file, stderr=subprocess.STDOUT
            )
            if rank in new_interpreters or os.environ.get(COLD) == "1"
            else command_server().start_script(
                words, str(tmp_path), _environ(rank, n), file.fileno(), file.fileno()
            )
            for rank, file in enumerate(files)
        ]
        try:
            codes = [process.wait(timeout=40) for process in processes]
        finally:
            for process in processes:
                process.kill()
    return codes, [path.read_text() for path in outputs], time.monotonic() - began


def _environ(rank: int, n: int) -> dict[str, str]:
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "OMP_NUM_THREADS": 1}
    return {**os.environ, **{name: str(value) for name, value in ours.items()}}


def test_a_script_that_never_closes_its_run_exits_cleanly(tmp_path: Path) -> None:
    codes, texts, _ = _run(tmp_path, "", new_interpreters=[0])
    assert (codes, texts) == ([0, 0], ["last line\n"] * 2)
    assert not (tmp_path / "meeting").exists()


def test_after_a_failure_no_rank_waits_and_the_exit_code_is_kept(tmp_path: Path) -> None:
    last = "if run.rank == 1: raise ValueError('mine')\nif run.rank == 2: sys.exit(3)\nrun.control.barrier()"
    codes, texts, seconds = _run(tmp_path, last, n=3)
    assert codes == [1, 1, 3]
    assert "ValueError: mine" in texts[1]
    assert seconds < 25


def test_a_dead_peer_delays_the_exit_by_a_bounded_time(tmp_path: Path) -> None:
    codes, texts, _ = _run(tmp_path, "if run.rank == 1: os._exit(9)")
    assert codes == [0, 9]
    assert "rank 0 leaves without the others" in texts[0]


@pytest.mark.parametrize(
    "last",
    [
        "torch.distributed.destroy_process_group()",
        "with run: torch.distributed.destroy_process_group()",
        "torch.distributed.destroy_process_group(); run.close()",
    ],
)
def test_a_script_that_destroys_the_groups_itself_ends_without_a_word(tmp_path: Path, last: str) -> None:
    assert _run(tmp_path, last)[:2] == ([0, 0], ["last line\n"] * 2)
    assert not (tmp_path / "meeting").exists()
