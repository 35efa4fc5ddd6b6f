"""GPUs: what CUDA_VISIBLE_DEVICES leaves, and which of them are chosen."""

from __future__ import annotations

import pytest

from dist_train.errors import ConfigError
from dist_train.jobs import gpus
from dist_train.jobs.gpus import Gpu, choose_gpus, visible_gpus

MACHINE = [
    Gpu(i, f"GPU-{letter}", "H100", used, 80)
    for i, (letter, used) in enumerate(zip("abcd", (5, 1, 9, 1), strict=True))
]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "physical_gpus", lambda: list(MACHINE))


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-d,GPU-a", [3, 0]),
        ("", []),
        ("1,9,2", [1]),  # as CUDA: the first that does not exist ends the list
        ("-1", []),
    ],
)
def test_visible(words: str | None, seen: list[int]) -> None:
    environ = {} if words is None else {"CUDA_VISIBLE_DEVICES": words}
    assert [gpu.index for gpu in visible_gpus(environ)] == seen


def test_auto_takes_the_least_used_first() -> None:
    assert [gpu.index for gpu in choose_gpus("auto", MACHINE, 3)] == [1, 3, 0]
    assert [gpu.index for gpu in choose_gpus("auto", MACHINE, None)] == [1, 3, 0, 2]


def test_numbers_count_within_the_visible_ones() -> None:
    assert [gpu.index for gpu in choose_gpus("1,0", visible_gpus({"CUDA_VISIBLE_DEVICES": "3,2"}), None)] == [
        2,
        3,
    ]


@pytest.mark.parametrize("text", ["4", "0,7", "x", ""])
def test_gpus_that_are_not_there(text: str) -> None:
    with pytest.raises(ConfigError, match=r"this machine has 4 visible GPU\(s\)"):
        choose_gpus(text, MACHINE, None)


@pytest.mark.parametrize("text", ["-1", "0,0"])
def test_gpus_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ConfigError):
        choose_gpus(text, MACHINE, None)
