"""Ranks come together late, or are refused and come again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from rendezvous_port import free_port

import dist_train as dt
from dist_train.errors import ConfigError, RendezvousError

pytestmark = pytest.mark.multiprocess


def rendezvous(form: str, meeting: str) -> str:
    return {"env": "env://", "file": meeting, "tcp": "tcp://localhost:PORT"}[form]


@pytest.mark.parametrize("form", ["env", "tcp", "file"])
def test_waiting_for_a_late_rank_writes_nothing_of_torchs(ranks: Any, tmp_path: Path, form: str) -> None:
    def late(meeting: str, form: str, port: int, folder: str) -> None:
        rank = int(os.environ["RANK"])
        # What torch's C++ writes.
        os.dup2(os.open(f"{folder}/{rank}.err", os.O_CREAT | os.O_WRONLY), 2)
        time.sleep(2.0 * (rank == 1))
        where = rendezvous(form, meeting).replace("PORT", str(port))
        with dt.init(seed=1, device="cpu", init_method=where, timeout_s=30):
            pass

    ranks(3, late, form, free_port(), str(tmp_path))
    said = [(tmp_path / f"{rank}.err").read_text() for rank in range(3)]
    assert not [line for text in said for line in text.splitlines() if "waitForInput" in line]


@pytest.mark.parametrize("form", ["env", "tcp", "file"])
def test_ranks_that_were_refused_may_come_again(ranks: Any, form: str) -> None:
    def twice(meeting: str, form: str, port: int) -> tuple[str, int]:
        rank = int(os.environ["RANK"])
        where = rendezvous(form, meeting).replace("PORT", str(port))
        with pytest.raises(ConfigError) as caught:
            dt.init(seed=rank, device="cpu", init_method=where, timeout_s=20)
        time.sleep(0.5 * rank)
        with dt.init(seed=5, device="cpu", init_method=where, timeout_s=20) as run:
            return str(caught.value), run.seed

    for text, seed in ranks(2, twice, form, free_port()):
        assert text.startswith("rank 1 asks for seed 1, rank 0 for 0")
        assert seed == 5


def test_a_rank_that_comes_after_the_refusal_learns_of_it_and_may_come_again(ranks: Any) -> None:
    def twice(_: str) -> int:
        rank = int(os.environ["RANK"])
        time.sleep(3.0 * (rank == 2))
        with pytest.raises(RendezvousError, match="rank 2 of 3 did not come within"):
            dt.init(seed=1, device="cpu", init_method="env://", timeout_s=1.5)
        with dt.init(seed=1, device="cpu", init_method="env://", timeout_s=30) as run:
            return run.control.max_int(rank)

    assert ranks(3, twice) == [2, 2, 2]
