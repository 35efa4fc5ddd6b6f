"""metrics_hash: independent of repeated steps and of timing; any other bit changes it."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dist_train.rundir.metrics_file import append_metric, metrics_hash, read_metrics


def record(step: int, /, **changes: Any) -> dict[str, Any]:
    whole = {
        "kind": "train",
        "step": step,
        "epoch": 0,
        "samples": 64 * step,
        "loss": 1 / (step + 1),
        "lr": 1e-3,
    }
    return {**whole, "metrics": {"accuracy": 0.5}, "samples_per_s": 10.0, **changes}


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.unlink(missing_ok=True)
    for one in records:
        append_metric(path, one)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_a_repeated_step_replaces_the_first_one(path: Path) -> None:
    plain = metrics_hash(written(path, record(1), record(2), record(3)))
    replayed = written(path, record(1), record(2, loss=9.0), record(3, loss=8.0), record(2), record(3))
    assert metrics_hash(replayed) == plain
    assert [one["loss"] for one in read_metrics(path)] == [1 / 2, 1 / 3, 1 / 4]
    assert metrics_hash(written(path, record(1), record(2), record(3, loss=8.0))) != plain


def test_speed_and_time_are_not_hashed(path: Path) -> None:
    plain = metrics_hash(written(path, record(1)))
    assert metrics_hash(written(path, record(1, samples_per_s=99.0, data_wait=3.0))) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"loss": math.nextafter(0.5, 1)},
        {"lr": math.nextafter(1e-3, 1)},
        {"metrics": {"accuracy": math.nextafter(0.5, 1)}},
        {"epoch": 1},
        {"samples": 65},
        {"step": 2},
        {"kind": "eval"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_one_bit_of_any_hashed_field_changes_it(path: Path, change: dict[str, Any]) -> None:
    plain = metrics_hash(written(path, record(1)))
    assert metrics_hash(written(path, record(1, **change))) != plain


def test_training_and_evaluation_of_one_step_are_two_records(path: Path) -> None:
    written(path, record(1), record(1, kind="eval", loss=7.0), record(1, kind="eval", loss=6.0))
    assert [(one["kind"], one["loss"]) for one in read_metrics(path)] == [("eval", 6.0), ("train", 0.5)]


def test_a_torn_last_line_is_ignored(path: Path) -> None:
    plain = metrics_hash(written(path, record(1)))
    with path.open("ab") as file:
        file.write(b'{"kind": "train", "step": 2, "lo')
    assert metrics_hash(path) == plain
    append_metric(path, record(2))
    assert metrics_hash(path) == metrics_hash(written(path, record(1), record(2)))


def test_the_hash_of_a_long_run_does_not_keep_its_records_in_memory(path: Path) -> None:
    """Rank 0 computes it after a run of weeks; a record takes kilobytes of memory, its hash does not."""
    many = 300
    written(path, *(record(step, **{f"more_{i}": i / 7 for i in range(100)}) for step in range(many)))
    tracemalloc.start()
    metrics_hash(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / many < 1000


def test_the_value_is_frozen(path: Path) -> None:
    """Hashes of an earlier version must stay comparable."""
    import xxhash

    written(path, record(1))
    text = (
        '{"epoch":0,"loss":"0x1.0000000000000p-1","lr":"0x1.0624dd2f1a9fcp-10",'
        '"metrics":{"accuracy":"0x1.0000000000000p-1"},"samples":64,"step":1}'
    )
    assert metrics_hash(path) == xxhash.xxh3_128_hexdigest(f"train\0{text}\n".encode())
