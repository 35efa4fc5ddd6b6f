"""Loops over uneven batches have one process's gradients: whatever the loss is made of, or a refusal."""

from __future__ import annotations

import functools
import itertools
import re
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import uneven_loops
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from uneven_loops import EXACT, new_loader, new_net, reading_ahead, sgd, token_means_by_hand, values

import dist_train as dt
from dist_train.distributed.gradient_weights.kept_batches import KeptBatch
from dist_train.testing import run_ranks

# One worker runs all loops at each world size, once.
pytestmark = [pytest.mark.multiprocess, pytest.mark.xdist_group("uneven-gradients")]


# Those without options of ddp, and without a gradient of a gradient.
SHARDED = {
    name: pattern
    for name, pattern in EXACT.items()
    if name != "autograd.grad to the input" and not re.search("bucket|unused|static", name)
}


def read_ahead(run: dt.Run) -> None:
    model = new_net()
    for x, y in reading_ahead(new_loader()):
        functional.cross_entropy(model(x), y).backward()


def two_loaders_of_unlike_shares(run: dt.Run) -> None:
    model = new_net()
    for (x, _), (y, _) in zip(new_loader(), new_loader(12, 3), strict=False):
        (model(x).mean() + model(y).mean()).backward()


def one_loss_of_two_batches(run: dt.Run) -> None:
    model = new_net()
    torch.stack([model(x).mean() for x, _ in new_loader(n=7)]).sum().backward()


def all_batches_read_first(run: dt.Run) -> None:
    model = new_net()
    for x, _ in list(new_loader(n=7)):
        model(x).mean().backward()


def batches_of_an_ended_loop(run: dt.Run) -> None:
    model = new_net()
    endless = itertools.cycle(new_loader(n=7))
    for _ in range(3):
        x, y = next(endless)
        functional.cross_entropy(model(x), y).backward()


def batches_of_an_ended_loop_beside_others(run: dt.Run) -> None:
    model = new_net()
    for (x, _), (y, _) in zip(new_loader(11), itertools.cycle(new_loader(8)), strict=False):
        (model(x).mean() + model(y).mean()).backward()


def plain_beside_units(run: dt.Run) -> None:
    model = new_net()
    for x, y in new_loader():
        run.backward(functional.cross_entropy(model(x), y, reduction="sum"), units=len(y))
        model(x).mean().backward()


def plain_over_micro_batches(run: dt.Run) -> None:
    model = new_net()
    for micro_batch in new_loader(n=7).micro_batches():
        x, y = micro_batch.batch
        functional.cross_entropy(model(x), y).backward()


def micro_batches_read_first(run: dt.Run) -> None:
    model = new_net()
    for micro_batch in list(new_loader(n=7).micro_batches()):
        functional.cross_entropy(model(micro_batch.batch[0]), micro_batch.batch[1]).backward()


def shapes_and_numbers(run: dt.Run) -> None:
    model = new_net()
    for loss, units in [(model(values(2, 3)), 2), (model(values(2, 3)).sum(), -1), ([torch.ones(())], [])]:
        with pytest.raises(dt.errors.UsageError, match=r"run\.backward"):
            run.backward(loss, units=units)
    run.gradients._modules.clear()
    run.backward(torch.ones(()), units=1)


REFUSED: dict[str, tuple[Callable[[dt.Run], None], str]] = {
    "read ahead": (read_ahead, "unlike shares"),
    "two loaders": (two_loaders_of_unlike_shares, "unlike shares"),
    "one loss of two batches": (one_loss_of_two_batches, "unlike shares"),
    "all batches read first": (all_batches_read_first, "unlike shares"),
    "batches of an ended loop": (batches_of_an_ended_loop, "unlike shares"),
    "batches of an ended loop beside others": (batches_of_an_ended_loop_beside_others, "unlike shares"),
    "a plain loss beside units": (plain_beside_units, "no units of its own"),
    "plain over micro-batches": (plain_over_micro_batches, "micro_batches() is not weighted"),
    "micro-batches read first": (micro_batches_read_first, "micro_batches() is not weighted"),
    "shapes, numbers, no module": (shapes_and_numbers, "dt.prepare"),
}


def _all_on_a_rank(strategy: str) -> tuple[dict[str, Any], dict[str, str]]:
    uneven_loops.STRATEGY = strategy
    with dt.init(seed=0, device="cpu", timeout_s=30) as run:
        exact: dict[str, Any] = {}
        for name, pattern in (EXACT if strategy == "ddp" else SHARDED).items():
            try:
                exact[name] = pattern(run)
            except Exception:
                exact[name] = traceback.format_exc()
        said = {}
        for name, (pattern, _) in REFUSED.items():
            if run.world_size == 2 and strategy == "ddp":
                try:
                    pattern(run)
                    said[name] = "nothing"
                except Exception as error:
                    said[name] = str(error)
        exact["by hand"] = token_means_by_hand(run)
    return exact, said


@functools.cache
def _ran(world_size: int, strategy: str = "ddp") -> list[Any]:
    return run_ranks(_all_on_a_rank, world_size, 60.0, args=(strategy,))


@pytest.mark.proves(
    "A loop over uneven batches has one process's gradients, or is refused with the exact form",
    limits="W = 2, 3; float64, 1e-9; the loops of tests/unit/strategies/uneven_loops.py",
)
@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.proof), 3])
@pytest.mark.parametrize("pattern", EXACT)
def test_a_loop_has_the_gradients_of_one_process(pattern: str, world_size: int) -> None:
    ((alone, _),) = _ran(1)
    for exact, _ in _ran(world_size):
        assert exact[pattern] == pytest.approx(alone[pattern], rel=1e-9, abs=1e-12)


@pytest.mark.proves(
    "A loop over uneven batches has one process's gradients where each parameter is spread over ranks (fsdp)",
    limits="W = 2, 3; float64, 1e-9; without gradients of gradients, which torch's fully_shard has not",
)
@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.proof), 3])
@pytest.mark.parametrize("pattern", SHARDED)
def test_a_loop_over_a_sharded_model_has_the_gradients_of_one_process(pattern: str, world_size: int) -> None:
    ((alone, _),) = _ran(1)
    for exact, _ in _ran(world_size, "fsdp"):
        assert exact[pattern] == pytest.approx(alone[pattern], rel=1e-9, abs=1e-12)


def test_the_mean_over_tokens_is_that_of_plain_torch() -> None:
    ((alone, _),) = _ran(1)
    assert alone["token means"] == pytest.approx(alone["by hand"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_cannot_be_weighted_is_refused_with_the_exact_form(pattern: str) -> None:
    for _, said in _ran(2):
        assert REFUSED[pattern][1] in said[pattern]
        assert "run.backward" in said[pattern]


def _pair(source: Iterator[Any]) -> list[Any]:
    return list(itertools.islice(source, 2))


def _from_a_thread(batches: Any) -> Iterator[Any]:
    """As a prefetching generator does, here without a read ahead."""
    iterator = iter(batches)
    with ThreadPoolExecutor(1) as pool:
        while (batch := pool.submit(next, iterator, None).result()) is not None:
            yield batch


def _loop(kind: str) -> str:
    """Train one step or two by a loop of this kind, then save; what the loader says."""
    with dt.init(seed=0, device="cpu"):
        model, other, loader = new_net(), new_net(), new_loader()
        optimizer, second = sgd(model), sgd(other)

        def train(x: torch.Tensor) -> None:
            model(x).mean().backward()
            optimizer.step()

        batches: Any = loader
        if kind == "ahead":
            batches = reading_ahead(loader)
        if kind == "list":
            batches = list(loader)
        if kind == "thread":
            batches = _from_a_thread(loader)
        if kind == "groups":
            source = iter(loader)
            batches = itertools.chain.from_iterable(iter(functools.partial(_pair, source), []))
        try:
            for index, (x, _) in enumerate(batches):
                train(x)
                if kind == "adversaries":
                    other(x).mean().backward()
                    second.step()
                if kind != "groups" or index == 1:
                    loader.state_dict()
        except dt.errors.UsageError as error:
            return str(error)
        loader.state_dict()
    return "nothing"


@pytest.mark.parametrize("kind", ["ahead", "list", "thread"])
def test_a_position_ahead_of_the_training_is_refused(kind: str) -> None:
    assert "a resume would skip it" in _loop(kind)


@pytest.mark.parametrize("kind", ["plain", "groups", "adversaries"])
def test_a_position_of_a_plain_loop_is_not(kind: str) -> None:
    assert _loop(kind) == "nothing"


class _NothingReadBack(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "this waits for a GPU"
        return func(*args, **(kwargs or {}))


def test_a_batch_is_kept_by_the_program_and_not_by_its_data_set() -> None:
    batch = {"x": [torch.ones(2)]}
    followed = KeptBatch(batch)
    assert followed.alive
    del batch
    assert not followed.alive
    row = torch.ones(2)
    assert not KeptBatch([row]).alive


def test_nothing_is_read_from_the_device() -> None:
    """Neither by a weighted backward pass nor by run.backward, with and without zeroed gradients."""
    with dt.init(seed=0, device="cpu") as run:
        model, other = new_net(), new_net()
        x, optimizer = values(4, 3), sgd(model)
        with _NothingReadBack():
            for index in range(3):
                run.batch_weight.local, run.batch_weight.total = 1, 3
                model(x).mean().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=index == 0)
                for _ in range(2):
                    run.backward(other(model(x).relu()[:, :1].expand(-1, 3)).sum(), units=(x[:, 0] > 0).sum())
                optimizer.step()
                optimizer.zero_grad(set_to_none=index == 1)
        with pytest.raises(AssertionError, match="waits"), _NothingReadBack():
            x.sum().item()
