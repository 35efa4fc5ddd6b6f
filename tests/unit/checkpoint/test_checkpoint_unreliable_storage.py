"""A storage that answers any one call, or from one call on every call, with an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from checkpoint_cases import Training, manager
from memory_storage import BUCKETS, MemoryStorage

from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.errors import CheckpointWriteError, DistTrainError, UnavailableError

LOCATION = "memory://unreliable"
CALLS = (
    *("names", "files", "exists", "read", "open", "prepare", "free_bytes", "create_staging", "seal"),
    *("commit", "sync", "replace_record", "quarantine", "retire", "remove"),
)


class Unreliable(MemoryStorage):
    """Raises ETIMEDOUT at call number `fails_at`; `lasting`: also at each later one."""

    def __init__(self, fails_at: int, lasting: bool) -> None:
        super().__init__(LOCATION)
        self.fails_at, self.lasting, self.calls = fails_at, lasting, 0

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at or (self.lasting and self.calls > self.fails_at):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    @contextmanager
    def new_file(self, key: str) -> Iterator[Write]:
        self.count()
        with super().new_file(key) as write:
            yield write
            self.count()


def _counted(name: str) -> Callable[..., Any]:
    def call(self: Unreliable, *arguments: Any, **keywords: Any) -> Any:
        self.count()
        return getattr(MemoryStorage, name)(self, *arguments, **keywords)

    return call


for _name in CALLS:
    setattr(Unreliable, _name, _counted(_name))


@pytest.fixture
def three_steps() -> Iterator[dict[str, Any]]:
    """Steps 1 to 3 of attempt 0."""
    training, writer = Training(), manager(MemoryStorage(LOCATION))
    for step in (1, 2, 3):
        training.train()
        writer.save(step, training.state)
    yield training.state
    BUCKETS.clear()


def _failures(
    act: Callable[[CheckpointManager], object], lasting: bool, *allowed: type[DistTrainError]
) -> Iterator[int]:
    """Call `act` with each of its storage calls failing in turn; yield the step resumed after it."""
    before = deepcopy(BUCKETS[LOCATION])
    for fails_at in range(1, 1000):
        BUCKETS[LOCATION] = deepcopy(before)
        storage = Unreliable(fails_at, lasting)
        with suppress(*allowed):
            act(manager(storage, attempt=1, keep_last=2))
        if storage.calls < fails_at:
            return
        restored = manager(MemoryStorage(LOCATION), attempt=2).load_latest(Training(seed=9).state)
        assert restored is not None
        yield restored.step


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failed_call_while_loading_costs_no_checkpoint(three_steps: dict[str, Any], lasting: bool) -> None:
    def load(attempt: CheckpointManager) -> None:
        restored = attempt.load_latest(Training(seed=9).state)
        assert getattr(restored, "step", None) == 3

    assert set(_failures(load, lasting, UnavailableError, CheckpointWriteError)) == {3}


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failed_call_while_saving_leaves_the_last_or_the_new_one(
    three_steps: dict[str, Any], lasting: bool
) -> None:
    resumed = list(_failures(lambda it: it.save(4, three_steps), lasting, CheckpointWriteError))
    assert resumed == sorted(resumed)
    assert set(resumed) == {3, 4}


def test_a_file_that_is_called_as_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    training = Training()
    manager(tmp_path).save(1, training.state)
    (tmp_path / "step-00000009").write_bytes(b"not a directory")
    restored = manager(tmp_path, attempt=1).load_latest(training.state)
    assert getattr(restored, "step", None) == 1
