"""Seeds of ranks and purposes, and what a manifest records of a machine."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dist_train.distributed.determinism import apply, facts
from dist_train.distributed.run import Run
from dist_train.distributed.seeding import check_seed, derive, seed_all
from dist_train.env import RankInfo
from dist_train.errors import ConfigError, NotFoundError


def _draws(seed: int, rank: int) -> tuple[float, float, float]:
    seed_all(seed, rank)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_draws_repeat_and_differ_by_rank_seed_and_library() -> None:
    assert _draws(3, 1) == _draws(3, 1)
    every = [value for seed in range(3) for rank in range(3) for value in _draws(seed, rank)]
    assert len(set(every)) == len(every), "seed + rank would repeat: (0, 1) and (1, 0)"


def test_derived_seeds_are_frozen() -> None:
    assert derive(0, 1) != derive(1, 0)
    assert [derive(0), derive(0, 1), derive(7, 1, 2)] == [
        0xE220A8397B1DCDAF,
        0xA80ABA8C86640906,
        0xD093ED607DE87ED5,
    ]


@pytest.mark.parametrize("seed", [-1, 1 << 63, 1.5, True, "0"])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(ConfigError, match="is not a whole number"):
        check_seed(seed)  # type: ignore[arg-type]


def test_without_a_seed_the_rng_state_is_kept() -> None:
    import dist_train as dt

    before = torch.get_rng_state()
    with dt.init(device="cpu") as run:
        assert torch.equal(before, torch.get_rng_state())
        assert 0 <= run.seed < 1 << 32


def test_facts_are_plain_json() -> None:
    found = facts(torch.device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert found["threads_per_rank"] == torch.get_num_threads()


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that what apply() sets is restored
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    apply("none", "cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ConfigError, match="'sometimes' is not available"):
        apply("sometimes", "cpu")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    try:
        with pytest.raises(ConfigError, match="NCCL_ALGO=Tree contradicts"):
            apply("same_world_size", "cuda")
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def test_log_writes_rank_0s_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for rank in (0, 1):
        info = RankInfo(rank, rank, 0, 2, 2, 1, None, None, "manual")
        run = Run(info, torch.device("cpu"), directory=tmp_path)
        run.log(step=5, loss=torch.tensor(0.5), note="x")
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert {key: record[key] for key in ("kind", "step", "loss", "note")} == {
        "kind": "train",
        "step": 5,
        "loss": 0.5,
        "note": "x",
    }
    with caplog.at_level(logging.INFO):
        Run(RankInfo.from_env({}), torch.device("cpu")).log(step=6, loss=1.0)
    assert "step 6 loss=1.0" in caplog.text


def test_a_process_without_launch_has_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, cpu = RankInfo.from_env({}), torch.device("cpu")
    assert Run(info, cpu, directory=tmp_path).dir == tmp_path
    for argv, command in (
        (["my train.py", "--lr", "0.1"], "dist-train launch 'my train.py' --lr 0.1"),
        (["-c"], "dist-train launch SCRIPT.py"),
        ([], "dist-train launch SCRIPT.py"),
    ):
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(NotFoundError, match="this process has no run directory") as caught:
            _ = Run(info, cpu).dir
        assert f"hint:  {command}\n" in str(caught.value)
