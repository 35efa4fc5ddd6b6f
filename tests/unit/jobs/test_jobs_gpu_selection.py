"""`--gpus`: which GPUs it means, which `auto` takes, and what is refused."""

from __future__ import annotations

import pytest

from dist_train.errors import ConfigError
from dist_train.jobs.gpu_selection import choice_in_words, choose_gpus
from dist_train.jobs.gpus import Gpu, GpuProcess, visible_among

MACHINE = [
    Gpu(i, f"GPU-{letter}", "H100", used, 80)
    for i, (letter, used) in enumerate(zip("abcd", (5, 1, 9, 1), strict=True))
]
SOMEBODY = (GpuProcess(1, "ann", 1),)


def chosen(text: str, gpus: list[Gpu], count: int | None = None) -> list[int]:
    return [gpu.index for gpu in choose_gpus(text, gpus, count)]


def test_auto_takes_the_least_used_first() -> None:
    assert chosen("auto", MACHINE, 3) == [1, 3, 0]
    assert chosen("auto", MACHINE) == [1, 3, 0, 2]


def test_auto_looks_at_processes_then_memory_then_load() -> None:
    gpus = [
        Gpu(0, "GPU-a", "H100", 0, 80, utilisation=0, processes=SOMEBODY),
        Gpu(1, "GPU-b", "H100", 40, 80, utilisation=0),
        Gpu(2, "GPU-c", "H100", 8, 80, utilisation=90),
        Gpu(3, "GPU-d", "H100", 8, 80, utilisation=3),
    ]
    assert chosen("auto", gpus) == [3, 2, 1, 0]


def test_idle_cards_that_differ_by_a_few_mib_are_taken_in_order() -> None:
    gib, mib = 1 << 30, 1 << 20
    gpus = [Gpu(0, "GPU-a", "H100", 9 * mib, 80 * gib), Gpu(1, "GPU-b", "H100", 4 * mib, 80 * gib)]
    assert chosen("auto", gpus, 1) == [0]


def test_auto_prints_its_choice_with_the_reason() -> None:
    gpus = [Gpu(0, "GPU-a", "H100", 0, 80, processes=SOMEBODY), Gpu(1, "GPU-b", "H100", 8, 80, utilisation=7)]
    assert choice_in_words("auto", choose_gpus("auto", gpus, 1), gpus) == (
        "--gpus auto, least used first: GPU 1 (0 processes, 10 % of memory, 7 % busy); "
        "left alone: GPU 0 (1 process, 0 % of memory)"
    )
    assert choice_in_words("1", [gpus[1]], gpus) == "--gpus 1: GPU 1 (GPU-b)"


def test_numbers_count_within_the_visible_ones() -> None:
    assert chosen("1,0", visible_among(MACHINE, {"CUDA_VISIBLE_DEVICES": "3,2"})) == [2, 3]


@pytest.mark.parametrize(("text", "found"), [("GPU-c", [2]), ("GPU-d,0", [3, 0])])
def test_a_uuid_or_its_beginning(text: str, found: list[int]) -> None:
    assert chosen(text, MACHINE) == found


def test_a_list_may_name_more_than_there_are_processes() -> None:
    assert chosen("0,1,2", MACHINE, 1) == [0, 1, 2]  # one process that drives three


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("4", "there is no GPU 4"),
        ("0,7", "there is no GPU 7"),
        ("x", "there is no 'x'"),
        ("", "there is no ''"),
        ("-1", "there is no '-1'"),
        ("0,0", "GPU 0 is named twice"),
        ("0,GPU-a", "GPU 0 is named twice"),
        ("GPU-", "'GPU-' means 4 of them"),
    ],
)
def test_gpus_that_are_not_there_or_not_clear(text: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=r"this machine has 4 visible GPU\(s\)") as raised:
        choose_gpus(text, MACHINE, None)
    assert cause in str(raised.value)
    assert "dist-train devices" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "count", "words"),
    [
        ("0,3", 4, "--gpus 0,3: 4 GPUs are needed, it names 2"),
        ("auto", 8, "--gpus auto: 8 GPUs are needed, 4 are visible here"),
    ],
)
def test_fewer_than_needed_names_both_numbers(text: str, count: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_gpus(text, MACHINE, count)


def test_auto_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="--gpus auto: 1 GPUs are needed, 0 are visible here"):
        choose_gpus("auto", [], None)
