"""Workers are kept between epochs while the data set stays as it is; order and draws do not change by it."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import loader
from dist_train.data.permutation import Permutation
from dist_train.data.reading.dataset_changes import contents_digest
from dist_train.errors import ConfigError

pytestmark = pytest.mark.multiprocess


class Scaled(Dataset[Any]):
    """Says which process read a sample; `factor` is changed by the loop."""

    def __init__(self) -> None:
        self.factor = 1
        self.table = torch.ones(3)
        self.nested = {"levels": [np.zeros(4)]}

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        noise = float(torch.rand(()))
        level = self.factor * float(self.table[0]) + float(self.nested["levels"][0][1])
        return os.getpid(), index, level + noise * 1e-3


def read(one: ExactLoader) -> tuple[set[int], list[int], list[float]]:
    pids, ids, values = [torch.cat(parts).tolist() for parts in zip(*list(one), strict=True)]
    return set(pids), ids, values


def test_workers_are_kept_over_epochs_breaks_and_seeks_and_read_the_same() -> None:
    kept = ExactLoader(Scaled(), 8, workers=2)
    new = ExactLoader(Scaled(), 8, workers=2, persistent_workers=False)
    first, *others = [read(kept) for _ in range(3)]
    assert {frozenset(pids) for pids, _, _ in others} == {frozenset(first[0])}
    assert [one[1:] for one in (first, *others)] == [read(new)[1:] for _ in range(3)]
    for _ in kept:
        break
    rest = read(kept)
    assert rest[0] == first[0]
    assert rest[1] == [Permutation(40, 0, 3)[i] for i in range(8, 40)]
    kept.seek(1, 16)
    again = read(kept)
    assert again[0] == first[0]
    assert again[1] == others[0][1][16:]
    assert again[2] == others[0][2][16:]
    kept.close()
    assert multiprocessing.active_children() == []
    assert read(kept)[0].isdisjoint(first[0])
    del kept
    gc.collect()
    assert multiprocessing.active_children() == []


def rescale(dataset: Scaled) -> None:
    dataset.factor = 5


def fill(dataset: Scaled) -> None:
    dataset.table.fill_(5)


def poke(dataset: Scaled) -> None:
    dataset.nested["levels"][0][1] = 4


@pytest.mark.parametrize("change", [rescale, fill, poke])
def test_a_changed_data_set_gets_new_workers(change: Callable[[Scaled], None]) -> None:
    dataset = Scaled()
    one = ExactLoader(Subset(dataset, range(40)), 20, workers=1)
    before, _, values = read(one)
    change(dataset)
    after, _, changed = read(one)
    one.close()
    assert before.isdisjoint(after)
    assert min(changed) > 4.9 > max(values)


def test_an_error_in_a_worker_ends_the_kept_workers() -> None:
    class Broken(Scaled):
        def __getitem__(self, index: int) -> Any:
            raise KeyError(f"sample {index} is broken")

    one = ExactLoader(Broken(), 8, workers=2)
    with pytest.raises(KeyError, match="is broken"):
        next(iter(one))
    assert multiprocessing.active_children() == []


def test_a_stale_iterator_does_not_end_the_workers_of_the_next() -> None:
    one = ExactLoader(Scaled(), 8, workers=1)
    first = iter(one)
    next(first)
    second = iter(one)
    next(second)
    with pytest.raises(Exception, match="another iteration"):
        next(first)
    assert len(multiprocessing.active_children()) == 1
    assert len(list(second)) == 3
    one.close()


def test_workers_that_were_killed_between_epochs_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    one = ExactLoader(Scaled(), 8, workers=1)
    read(one)
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    with contextlib.suppress(RuntimeError):  # torch says so from its signal handler
        os.kill(worker.pid, signal.SIGKILL)
        time.sleep(0.1)
    assert read(one)[1] == [Permutation(40, 0, 1)[i] for i in range(40)]
    assert "a loader worker ended between two epochs" in caplog.text
    one.close()


class Slow(Scaled):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.8)


def test_a_timeout_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # How long torch waits for a worker that still reads.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    with pytest.raises(RuntimeError, match="timed out after"):
        next(iter(loader(Slow(), 8, workers=1, timeout=0.2)))
    assert multiprocessing.active_children() == []


def test_prefetch_factor_bounds_what_is_read_ahead() -> None:
    seen = multiprocessing.Value("i", 0)

    class Counted(Scaled):
        def __getitem__(self, index: int) -> int:
            with seen.get_lock():
                seen.value += 1
            return index

    for factor, most in ((1, 2), (4, 5)):
        seen.value = 0
        one = loader(Counted(), 4, workers=1, prefetch_factor=factor, persistent_workers=False)
        batches = iter(one)
        next(batches)
        deadline = time.monotonic() + 2
        while seen.value < most * 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert seen.value == most * 4
        del batches


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"persistent_workers": True}, "persistent_workers=True has no effect without workers"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 has no effect without workers"),
        ({"timeout": 3.0}, "timeout=3.0 has no effect without workers"),
        ({"workers": 1, "prefetch_factor": 0}, "prefetch_factor=0"),
        ({"workers": 1, "timeout": -1}, "timeout=-1"),
    ],
)
def test_options_of_workers_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loader(Scaled(), 4, **options)


class Slots:
    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = 1


def test_what_the_digest_of_a_data_set_sees() -> None:
    class Everything:
        def __init__(self) -> None:
            self.paths = [f"{i}.png" for i in range(1000)]
            self.big = np.zeros(10_000_000, dtype=np.uint8)
            self.slots = Slots()
            self.transform: Any = functools.partial(max, Slots())
            self.itself = self
            self.tags = {"a", "b"}
            self.module = torch.nn.Linear(2, 2)

    one = Everything()
    seen = [contents_digest(one)]
    assert contents_digest(one) == seen[0] is not None

    def changed() -> None:
        seen.append(contents_digest(one))
        assert len(set(seen)) == len(seen), len(seen)

    one.paths[500] = "other.png"
    changed()
    one.slots.level = 2
    changed()
    one.transform.args[0].level = 3
    changed()
    one.tags.add("c")
    changed()
    with torch.no_grad():
        one.module.weight.add_(1)
    changed()
    one.big = one.big + 1
    changed()
    one.paths = [object() for _ in range(200_000)]  # type: ignore[misc]
    assert contents_digest(one) is None
