"""run.mean and run.gather: exact over uneven and empty ranks; a rank alone is refused within seconds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dist_train as dt
from dist_train.distributed import keyed_exchange
from dist_train.errors import ConfigError

pytestmark = pytest.mark.multiprocess


def test_means_are_over_samples_and_empty_ranks_count_nothing(ranks: Any) -> None:
    def rank_main(meeting: str) -> Any:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            losses = torch.tensor([[1.0, 2.0, 6.0], [10.0], []][run.rank][: 3 - run.rank])
            each = run.mean(losses)
            nothing = run.rank == 2
            sums = {"loss": torch.tensor(float("nan")) if nothing else losses.sum(), "right": 2 * len(losses)}
            return each, run.mean(sums, count=len(losses)), run.mean(losses.sum(), count=len(losses))

    for each, named, single in ranks(3, rank_main):
        assert each == single == 19 / 4
        assert named == {"loss": 19 / 4, "right": 2.0}


def test_a_mean_of_one_process() -> None:
    with dt.init(device="cpu") as run:
        assert run.mean(torch.arange(4.0)) == 1.5
        assert run.mean({"a": 3}, count=2) == {"a": 1.5}
        assert math.isnan(run.mean(float("nan"), count=1))
        with pytest.raises(ConfigError, match="without a count"):
            run.mean(0.5)
        with pytest.raises(ConfigError, match="4 values of shape"):
            run.mean(torch.arange(4.0), count=4)
        with pytest.raises(ConfigError, match="no rank has a sample of 'a'"):
            run.mean({"a": 0.0}, count=0)


def test_gather_takes_uneven_rows_of_any_dtype_and_none(ranks: Any) -> None:
    def rank_main(meeting: str) -> Any:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            batches = [torch.full((2, 2), float(run.rank)), torch.full((run.rank + 1, 2), 9.0)]
            rows = run.gather([] if run.rank == 2 else batches)
            flags = run.gather(torch.tensor([True, False])[: run.rank])
            small = run.gather(torch.tensor([1.5], dtype=torch.bfloat16)[: int(run.is_main)])
            return rows.tolist(), flags.tolist(), (small.dtype == torch.bfloat16, small.tolist())

    for rows, flags, small in ranks(3, rank_main):
        assert rows == [[0.0] * 2] * 2 + [[9.0] * 2] + [[1.0] * 2] * 2 + [[9.0] * 2] * 2
        assert flags == [True, True, False]
        assert small == (True, [1.5])


def test_other_names_and_shapes_are_refused_on_all_ranks(ranks: Any) -> None:
    def rank_main(meeting: str) -> list[str]:
        said = []
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            with pytest.raises(ConfigError) as caught:
                run.mean({f"loss{run.rank}": 1.0}, count=1)
            said.append(caught.value.what)
            with pytest.raises(ConfigError) as caught:
                run.gather(torch.zeros(2, 1 + run.rank))
            said.append(caught.value.what)
            assert run.mean(float(run.rank), count=1) == 0.5  # both are usable afterwards
        return said

    first, second = ranks(2, rank_main)
    assert first == second
    assert first[0] == "run.mean got ['loss1'] on rank 1 and ['loss0'] on rank 0"
    assert "float32 rows of shape [2] on rank 1" in first[1]


def test_a_rank_alone_is_refused_and_both_places_are_named(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_exchange, "_LOOK_AFTER_S", 0.3)

    def rank_main(meeting: str) -> str:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            collective = run.mean if run.is_main else run.gather
            with pytest.raises(ConfigError) as caught:
                collective(torch.zeros(1))
            return str(caught.value)

    for text in ranks(2, rank_main):
        assert "run.mean" in text.splitlines()[0]
        assert "run.gather" in text.splitlines()[0]
        assert "not under `if run.is_main:`" in text


def test_a_rank_that_never_comes_is_named_within_the_timeout(ranks: Any) -> None:
    def rank_main(meeting: str) -> str:
        run = dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20, collective_timeout_s=1.0)
        if run.rank == 2:
            run.close(failed=True)
            return ""
        with pytest.raises(ConfigError) as caught:
            run.mean(1.0, count=1)
        run.close(failed=True)
        return caught.value.what

    first, second, _ = ranks(3, rank_main)
    assert first == "run.mean: rank 2 did not come within 1 s"
    assert second == first
