"""The storages of checkpoints keep their contract: ours, and a third party's that is found by its URL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_server import BUCKET, bucket_server

from dist_train import registry
from dist_train.checkpoint.store.open_storage import open_storage
from dist_train.testing import check_storage

UNIT_TESTS = Path(__file__).parents[1] / "unit" / "checkpoint"


def test_directories(tmp_path: Path) -> None:
    numbers = itertools.count()
    check_storage(lambda: open_storage(tmp_path / "made" / str(next(numbers))))


def test_s3_on_a_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    with bucket_server(tmp_path, monkeypatch):
        check_storage(lambda: open_storage(f"s3://{BUCKET}/runs/{next(numbers)}"))


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(UNIT_TESTS))
    from checkpoint_places import memory_registered

    with memory_registered(monkeypatch):
        yield


@pytest.mark.usefixtures("plugin")
def test_a_third_partys() -> None:
    numbers = itertools.count()
    check_storage(lambda: open_storage(f"memory://{next(numbers)}"))


def test_there_is_ours() -> None:
    assert registry.names("checkpoint_storages") == ["az", "file", "gs", "s3"]
