"""dt.loader(evaluation=True): each sample once at any world size, in order, on all ranks together."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dist_train as dt
from dist_train.data.evaluation_loader import EvaluationLoader, EvaluationPartition
from dist_train.distributed import keyed_exchange
from dist_train.errors import ConfigError, UsageError
from dist_train.testing import run_ranks


@pytest.mark.parametrize("n", [1, 2, 7, 9, 96, 1001])
def test_each_sample_once_in_order_at_every_world_size(n: int) -> None:
    data = TensorDataset(torch.arange(n))
    for world_size, batch_size in itertools.product((1, 2, 3, 4, 8), (1, 4, 16, 2000)):
        loaders = [
            EvaluationLoader(data, batch_size, rank=r, world_size=world_size) for r in range(world_size)
        ]
        sizes = [[len(x) for (x,) in one] for one in loaders]
        assert [i for one in loaders for (x,) in one for i in x.tolist()] == list(range(n))
        assert [len(one) for one in sizes] == [len(one) for one in loaders]
        if n >= world_size:
            assert len({len(one) for one in sizes}) == 1, "equally many forward passes on all ranks"
        assert all(size for one in sizes for size in one)
        assert max(size for one in sizes for size in one) <= -(-batch_size // world_size) + 1


def test_it_is_lazy_and_takes_no_memory_for_many_samples() -> None:
    part = EvaluationPartition(10**12, 64, 1, 3)
    assert next(part.sample_ids(lambda positions: positions, part.batches - 1))[-1] == 2 * 10**12 // 3


class Noisy(Dataset[float]):
    """Draws at every item."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 2])
def test_it_begins_at_0_after_a_break_and_draws_the_same(workers: int) -> None:
    data = dt.loader(Noisy(), 4, evaluation=True, workers=workers)
    before = torch.get_rng_state()
    first = [batch.tolist() for batch in data]
    assert [batch.tolist() for batch in itertools.islice(data, 2)] == first[:2]
    assert [batch.tolist() for batch in data] == first
    assert torch.equal(before, torch.get_rng_state())
    assert (len(data), isinstance(data, dt.data.EvaluationLoader)) == (3, True)


def _auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    above = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    return float((above > 0).double().mean() + (above == 0).double().mean() / 2)


@pytest.mark.proves(
    "A plain evaluation loop counts each sample once; means, AUC and perplexity are those of one process",
    limits="W = 1 to 4, N = 9, also fewer samples than ranks",
)
@pytest.mark.multiprocess
def test_counts_auc_and_perplexity_are_those_of_one_process(ranks: Any) -> None:
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 1])

    def rank_main(meeting: str, n: int) -> Any:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            torch.manual_seed(1)
            plain = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
            model = dt.prepare(plain)
            model(x[:, None]).sum().backward()  # training: now a forward pass brings rank 0's buffers
            model.eval()
            data = dt.loader(TensorDataset(x[:n], labels[:n]), 4, evaluation=True)
            answers = []
            for _ in range(2):
                nll, seen, scores, truth = 0.0, 0, [], []
                with torch.no_grad():
                    for inputs, target in data:
                        out = model(inputs[:, None])[:, 0]
                        nll += float(nn.functional.softplus(-out).sum())
                        seen += len(target)
                        scores.append(out)
                        truth.append(target)
                perplexity = math.exp(run.mean(nll, count=seen))
                gathered = run.gather(scores), run.gather(truth)
                assert gathered[1].tolist() == labels[:n].tolist(), "in the order of the data set"
                answers.append((perplexity, _auc(*gathered) if n > 1 else 0.0))
            return run.control.sum([float(seen)]), answers

    for n in (9, 3, 1):
        ((_, alone),) = ranks(1, rank_main, n)
        for world_size in (2, 4) if n == 9 else (2,):
            for seen, answers in ranks(world_size, rank_main, n):
                assert seen == [float(n)]
                for got, wanted in zip(answers, alone, strict=True):
                    assert got == pytest.approx(wanted, rel=1e-12)


@pytest.mark.multiprocess
def test_an_evaluation_on_the_main_rank_alone_is_refused(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_exchange, "_LOOK_AFTER_S", 0.3)

    def rank_main(meeting: str) -> str:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            train = dt.loader(TensorDataset(torch.arange(8)), 4)
            held_out = dt.loader(TensorDataset(torch.arange(9)), 4, evaluation=True)
            list(train)
            with pytest.raises(ConfigError) as caught:
                # `if run.is_main: evaluate()`, while the others begin the next epoch.
                list(held_out if run.is_main else train)
            return str(caught.value)

    for text in ranks(2, rank_main):
        assert "a loop over loader 1 (9 samples of TensorDataset)" in text
        assert "a loop over loader 0 (8 samples of TensorDataset)" in text
        assert "not under `if run.is_main:`" in text


@pytest.mark.multiprocess
def test_an_evaluation_that_the_others_never_begin_ends_at_the_timeout(ranks: Any) -> None:
    def rank_main(meeting: str) -> str:
        run = dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20, collective_timeout_s=1.0)
        text = ""
        if run.is_main:
            with pytest.raises(ConfigError) as caught:
                list(dt.loader(TensorDataset(torch.arange(9)), 4, evaluation=True))
            text = caught.value.what
        run.close(failed=True)
        return text

    assert "(9 samples of TensorDataset): rank 1 did not come within 1 s" in ranks(2, rank_main)[0]


def _fewer_samples_than_ranks(n: int, by_micro_batches: bool) -> float | str:
    """The mean over an evaluation of a model that is spread over ranks, or what is said."""
    with dt.init(seed=0, device="cpu", timeout_s=20) as run:
        model = dt.prepare(nn.Linear(1, 2), "fsdp").eval()
        rows = TensorDataset(torch.arange(1.0, 4.0)[:n, None])
        total, count = 0.0, 0
        try:
            with torch.no_grad():
                if by_micro_batches:
                    for micro in dt.loader(rows, 4, shuffle=False).micro_batches():
                        out = model(micro.batch[0]).sum()
                        total, count = total + float(out) * (micro.count > 0), count + micro.count
                else:
                    for (x,) in dt.loader(rows, 4, evaluation=True):
                        total, count = total + float(model(x).sum()), count + len(x)
        except UsageError as error:
            return f"{error} {error.hint}"
        return run.mean(total, count=count)


@pytest.mark.multiprocess
def test_fewer_samples_than_ranks_of_a_spread_model_are_refused() -> None:
    for said in run_ranks(_fewer_samples_than_ranks, 2, args=(1, False)):
        assert "fewer samples than ranks, with a Linear" in said
        assert ".micro_batches()" in said


@pytest.mark.multiprocess
@pytest.mark.proof
@pytest.mark.parametrize(("n", "by_micro_batches"), [(3, False), (1, True)])
def test_the_hint_and_enough_samples_evaluate_a_spread_model(n: int, by_micro_batches: bool) -> None:
    expected = run_ranks(_fewer_samples_than_ranks, 1, args=(n, False))
    assert run_ranks(_fewer_samples_than_ranks, 2, args=(n, by_micro_batches)) == pytest.approx(expected * 2)
