"""Torch can hang where DDP is freed after its process group; ranks of dist-train do not: control and cure.

The script of both is teardown_rounds.py. The cure is distributed/process_group_lifetime.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = Path(__file__).with_name("teardown_rounds.py")
RANKS = 4
ROUNDS = 300
CONTROL_ROUNDS = 1000
# A round takes some 0.1 s; nothing in it waits for longer than a busy machine makes it.
NO_PROGRESS_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How the processes went: rounds that each finished, and whether they stopped without an end."""

    rounds: tuple[int, ...]
    hung: bool
    exit_codes: tuple[int | None, ...]


def run(folder: Path, interpreter: Sequence[str], rounds: int) -> Ended:
    """Start the ranks, and wait for their end or until none has finished a round for long."""
    folder.mkdir()
    outputs = [folder / f"rank-{rank}.txt" for rank in range(RANKS)]
    with ExitStack() as opened:
        ranks = []
        for rank, output in enumerate(outputs):
            out = opened.enter_context(output.open("w"))
            names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            argv = [sys.executable, *interpreter, str(SCRIPT), str(folder), str(rounds)]
            ranks.append(
                subprocess.Popen(
                    argv, env={**os.environ, **names, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=out
                )
            )
        try:
            hung = not progress_to_the_end(ranks, outputs)
            codes = tuple(rank.poll() for rank in ranks)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    return Ended(tuple(len(output.read_text().splitlines()) for output in outputs), hung, codes)


def progress_to_the_end(ranks: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path]) -> bool:
    """Whether all end; false once no output has grown for long."""
    sizes, since = None, time.monotonic()
    while any(rank.poll() is None for rank in ranks):
        now = [output.stat().st_size for output in outputs]
        if now != sizes:
            sizes, since = now, time.monotonic()
        elif time.monotonic() - since > NO_PROGRESS_S:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.proves(
    "A DDP model that is freed after its process group hangs plain torch 2.13; ranks do not in 300 rounds of 4",
    limits="gloo on one machine",
)
def test_ddp_freed_after_its_group_hangs_plain_processes_and_no_ranks(tmp_path: Path) -> None:
    control = run(tmp_path / "plain", ["-u"], CONTROL_ROUNDS)
    print(f"plain processes: {control}")
    assert control.hung, "plain torch does not hang any more: is the cure still needed?"
    worker = ["-u", "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    rounds = max(ROUNDS, 3 * (max(control.rounds) + 1))
    cured = run(tmp_path / "ranks", worker, rounds)
    print(f"ranks: {cured}")
    assert cured == Ended((rounds,) * RANKS, False, (0,) * RANKS)
