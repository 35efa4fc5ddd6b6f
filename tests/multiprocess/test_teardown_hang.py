"""Torch can hang where DDP is freed after its process group; ranks of dist-train do not: control and cure.

The script: teardown_rounds.py. The cure: distributed/group_teardown.
"""

from __future__ import annotations

import os
import re
import signal
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
PLAIN = ["-u"]
AS_RANK = ["-u", "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
RANKS = 4
ROUNDS = 300
CONTROL_ROUNDS = 1000
# A round takes some 0.1 s; nothing in it waits for longer than a busy machine makes it.
NO_PROGRESS_S = 30.0
IMPORT_S = 120.0
# The innermost frame is the script's own: what it does is in C, and it waits in no function of torch.
FREES = re.compile(r'most recent call first\):\n  File ".*/teardown_rounds\.py"')


@dataclass(frozen=True)
class Ended:
    """How the processes went.

    Args:
        rounds: how many each has finished.
        exit_codes: None for one that had to be killed, as no round was finished for long.
        blocked: those of them that hang in freeing their objects, not in waiting for a peer.
    """

    rounds: tuple[int, ...]
    exit_codes: tuple[int | None, ...]
    blocked: tuple[int, ...]


def run(folder: Path, interpreter: Sequence[str], rounds: int, *words: str) -> Ended:
    """Start the ranks, and wait for their end or until none has finished a round for long."""
    folder.mkdir()
    outputs = [folder / f"rank-{rank}.txt" for rank in range(RANKS)]
    with ExitStack() as opened:
        ranks = []
        for rank, output in enumerate(outputs):
            out = opened.enter_context(output.open("w"))
            names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            argv = [sys.executable, *interpreter, str(SCRIPT), str(folder), str(rounds), *words]
            environ = {**os.environ, **names, "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen(argv, env=environ, stdout=out, stderr=out))
        try:
            watch(ranks, outputs)
            codes = tuple(rank.poll() for rank in ranks)
            for each in ranks:
                if each.poll() is None:
                    each.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    texts = [output.read_text() for output in outputs]
    finished = tuple(len(re.findall(r"^\d+$", text, re.MULTILINE)) for text in texts)
    return Ended(finished, codes, tuple(rank for rank, text in enumerate(texts) if FREES.search(text)))


def watch(ranks: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path]) -> None:
    """Return when all have ended, or when no output has grown for long."""
    sizes, since = [0] * len(outputs), time.monotonic()
    while any(rank.poll() is None for rank in ranks):
        now = [output.stat().st_size for output in outputs]
        if now != sizes:
            sizes, since = now, time.monotonic()
        elif time.monotonic() - since > (NO_PROGRESS_S if any(sizes) else IMPORT_S):
            return
        time.sleep(0.2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.proves(
    "DDP freed after its process group hangs plain torch 2.13; 4 ranks do it 300 times without a hang, and "
    "so do 4 processes started by hand that have called dt.init",
    limits="gloo on one machine",
)
def test_ddp_freed_after_its_group_hangs_plain_processes_and_no_ranks(tmp_path: Path) -> None:
    control = run(tmp_path / "plain", PLAIN, CONTROL_ROUNDS)
    print(f"plain processes: {control}")
    assert control.blocked, "plain torch does not hang any more: is the cure still needed?"
    rounds = max(ROUNDS, 3 * (max(control.rounds) + 1))
    cured = run(tmp_path / "ranks", AS_RANK, rounds)
    print(f"ranks: {cured}")
    assert cured == Ended((rounds,) * RANKS, (0,) * RANKS, ())
    by_hand = run(tmp_path / "hand", PLAIN, rounds, "dt.init")
    print(f"started by hand, with dt.init: {by_hand}")
    assert by_hand == Ended((rounds,) * RANKS, (0,) * RANKS, ())


@pytest.mark.proof
def test_processes_that_call_dt_init_free_ddp_after_its_group(tmp_path: Path) -> None:
    assert run(tmp_path / "hand", PLAIN, 5, "dt.init") == Ended((5,) * RANKS, (0,) * RANKS, ())
