"""Permutation: a bijection for every N, its inverse, its independence, its frozen outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dist_train.data import permutation as permutation_module
from dist_train.data.permutation import MAX_N, PERMUTATION_VERSION, TABLE_LIMIT, Permutation
from dist_train.errors import ConfigError

GOLDEN = Path(__file__).with_name("golden_permutation_v1.json")
BIG = [10**12, MAX_N, MAX_N - 1, 3 * 2**60 + 7]
# 40,000 consecutive outputs; a sound order gives about N(0, 1), and these are a few dozen draws.
Z_BOUND = 5.0


@pytest.mark.parametrize(
    "n", [1, 2, 3, 7, 96, 1001, TABLE_LIMIT, TABLE_LIMIT + 1, 16_640, 65_521, 65_536, 100_003]
)
def test_every_sample_once_and_back(n: int) -> None:
    p = Permutation(n, seed=5, epoch=3, dataset_id="x")
    order = p[np.arange(n)]
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(p.inverse(order), np.arange(n))
    for i in range(0, n, max(1, n // 40)):
        assert p[i] == order[i]
        assert p.inverse(p[i]) == i


@pytest.mark.parametrize("n", BIG)
def test_random_points_of_huge_n_round_trip_and_agree_with_scalars(n: int) -> None:
    p = Permutation(n, seed=1)
    points = np.random.default_rng(0).integers(0, n, 2000)
    images = p[points]
    assert images.dtype == np.int64
    assert 0 <= images.min() <= images.max() < n
    assert np.array_equal(p.inverse(images), points)
    assert [p[int(i)] for i in points[:200]] == images[:200].tolist()
    assert [p.inverse(int(i)) for i in images[:200]] == points[:200].tolist()


def test_iteration_gives_the_same_order_lazily() -> None:
    p = Permutation(40_000, seed=2)
    assert list(p) == p[np.arange(40_000)].tolist()
    assert next(iter(Permutation(10**12))) == Permutation(10**12)[0]
    assert len(Permutation(10**12)) == 10**12


def test_shape_is_kept_and_bad_indices_are_refused() -> None:
    p = Permutation(100_000)
    assert p[np.arange(6).reshape(2, 3)].shape == (2, 3)
    assert p[np.array([], dtype=np.int64)].shape == (0,)
    with pytest.raises(IndexError, match="index 100000 is not in 0"):
        p[100_000]
    with pytest.raises(IndexError, match="-1"):
        p[np.array([3, -1])]
    with pytest.raises(TypeError, match="float64"):
        p[np.array([0.5])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "0 samples"),
        ({"n": MAX_N + 1}, str(MAX_N + 1)),
        ({"n": 5, "seed": -1}, "seed -1"),
        ({"n": 5, "seed": 2**128}, f"seed {2**128}"),
        ({"n": 5, "epoch": -2}, "epoch -2"),
    ],
)
def test_out_of_range_arguments_are_named(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Permutation(**arguments)


@pytest.mark.parametrize("n", [1000, 100_000])
def test_seed_epoch_and_dataset_id_each_give_another_order(n: int) -> None:
    keys = [(0, 0, ""), (0, 1, ""), (1, 0, ""), (0, 0, "a"), (0, 0, "a\0"), (2**64, 0, ""), (2, 0, "")]
    orders = {tuple(Permutation(n, *key)[np.arange(64)].tolist()) for key in keys}
    # In particular seed 0, epoch 1 is not seed 1, epoch 0, as `seed + epoch` would make it.
    assert len(orders) == len(keys)


def test_orders_of_different_keys_are_unrelated() -> None:
    n, count = 10**6, 20_000
    points = np.arange(count)
    base = Permutation(n, 7, 0)[points]
    for other in (Permutation(n, 7, 1), Permutation(n, 8, 0), Permutation(n, 7, 0, "x")):
        assert abs(np.corrcoef(base, other[points])[0, 1]) * math.sqrt(count) < Z_BOUND


def serial_z(order: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """z of the correlation between consecutive outputs."""
    values = order(np.arange(min(n, 40_000))) / n - 0.5
    return float((values[1:] * values[:-1]).sum() / (values * values).sum() * math.sqrt(len(values)))


def equal_gaps(order: Callable[[np.ndarray], np.ndarray], n: int) -> int:
    """How many pairs of consecutive gaps are equal: about count / n for a random order."""
    gaps = np.diff(order(np.arange(min(n, 40_000)))) % n
    return int((gaps[1:] == gaps[:-1]).sum())


SIZES = [20_011, 65_521, 10**6, 1_281_167, 10**9, 10**12]


@pytest.mark.parametrize("n", SIZES)
def test_consecutive_outputs_are_unrelated(n: int) -> None:
    for seed in range(8):
        assert abs(serial_z(Permutation(n, seed).__getitem__, n)) < Z_BOUND
        assert equal_gaps(Permutation(n, seed).__getitem__, n) <= 2 * 40_000 // n + 8


@pytest.mark.proves(
    "The permutation is a bijection without serial correlation; four rounds would not be",
    limits="statistics, not a proof",
)
def test_the_same_tests_reject_worse_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 10**6

    def congruential(points: np.ndarray) -> np.ndarray:
        return (points * 654_321 + 12_345) % n

    assert abs(serial_z(congruential, n)) > Z_BOUND
    assert equal_gaps(congruential, n) > 30_000
    monkeypatch.setattr(permutation_module, "ROUNDS", 2)
    assert max(abs(serial_z(Permutation(n, seed).__getitem__, n)) for seed in range(8)) > Z_BOUND


def chi_square_z(draw: Callable[[int], tuple[int, ...]], outcomes: int, trials: int) -> float:
    counts: dict[tuple[int, ...], int] = {}
    for trial in range(trials):
        order = draw(trial)
        counts[order] = counts.get(order, 0) + 1
    expected = trials / outcomes
    chi = sum((count - expected) ** 2 for count in counts.values()) / expected
    chi += (outcomes - len(counts)) * expected
    freedom = outcomes - 1
    return (chi - freedom) / math.sqrt(2 * freedom)


def test_small_n_reaches_every_order_equally_often_and_four_rounds_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw(seed: int) -> tuple[int, ...]:
        return tuple(Permutation(4, seed)[np.arange(4)].tolist())

    assert abs(chi_square_z(draw, 24, 4800)) < Z_BOUND
    monkeypatch.setattr(permutation_module, "TABLE_LIMIT", 0)
    monkeypatch.setattr(permutation_module, "ROUNDS", 4)
    assert chi_square_z(draw, 24, 4800) > Z_BOUND


def test_outputs_are_frozen_under_the_version() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["version"] == PERMUTATION_VERSION
    for case in golden["cases"]:
        p = Permutation(case["n"], case["seed"], case["epoch"], case["dataset_id"])
        points = case["points"]
        assert p[np.array(points)].tolist() == case["images"], case
        assert [p[i] for i in points] == case["images"]
