"""The blocks of "Your own loop, exactly" give one process's numbers at any number of ranks."""

from __future__ import annotations

import functools
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dist_train.data.exact_loader import ExactLoader
from dist_train.testing import run_ranks

# One worker runs the page's blocks at each world size, once.
pytestmark = [pytest.mark.multiprocess, pytest.mark.xdist_group("own-loop-page")]

PAGE = Path(__file__).parents[3] / "docs/concepts/your-own-loop.md"


def _blocks() -> dict[str, str]:
    """Heading (of a second block: "Heading 2") -> code; the first block, which all need, has the page's."""
    found = {}
    for part in re.split(r"^#+ ", PAGE.read_text(), flags=re.M)[1:]:
        code = re.findall(r"^```python\n(.*?)^```", part, flags=re.M | re.S)
        for number, block in enumerate(code, 1):
            heading = part.splitlines()[0]
            found[heading if number == 1 else f"{heading} {number}"] = block
    return found


BLOCKS = _blocks()
FIRST = "Your own loop, exactly"


# What a block measures, beside the weights that it ends with.
MEASURED = ("loss", "best", "median", "epochs")


def _run_page() -> dict[str, Any]:
    first: dict[str, Any] = {}
    exec(BLOCKS[FIRST], first)
    with first["run"]:
        return {heading: _run_block(code, first) for heading, code in BLOCKS.items() if heading != FIRST}


def _run_block(code: str, first: dict[str, Any]) -> list[float] | str:
    """The numbers that a block ends with, or its traceback."""
    torch.manual_seed(0)
    names = dict(first)
    try:
        exec(code, names)
    except Exception:
        return traceback.format_exc()
    modules = [value for value in names.values() if isinstance(value, nn.Module)]
    weights = torch.cat([p.detach().flatten() for module in modules for p in module.parameters()])
    return [*weights.tolist(), *(names[n] for n in MEASURED if type(names.get(n)) in (int, float))]


@functools.cache
def _numbers(world_size: int) -> list[dict[str, Any]]:
    return run_ranks(_run_page, world_size, 60.0, environ={"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.proves(
    'Each pattern of "Your own loop, exactly" ends with one process\'s numbers',
    limits="W = 1, 2, 3; float64, 1e-9",
)
@pytest.mark.parametrize("heading", [heading for heading in BLOCKS if heading != FIRST])
def test_the_block_gives_one_processes_numbers(heading: str) -> None:
    (alone,) = _numbers(1)
    assert isinstance(alone[heading], list), alone[heading]
    for world_size in (2, 3):
        for numbers in _numbers(world_size):
            assert numbers[heading] == pytest.approx(alone[heading], rel=1e-9, abs=1e-11)


def test_every_pattern_has_its_block() -> None:
    wanted = {"One mean per batch", "Accumulation", "Means over tokens", "A gradient penalty, forces"}
    wanted |= {"Two networks against each other", "A recurrent network", "Two loaders", FIRST}
    wanted |= {"Evaluation", "An early stop", "Accumulation 2", "Means with class weights"}
    assert wanted <= set(BLOCKS)


def test_means_with_class_weights_are_those_of_the_whole_step() -> None:
    """Against plain PyTorch: the block's numbers are the weighted mean over each step's ten samples."""
    first: dict[str, Any] = {}
    code = BLOCKS[FIRST].replace("run = dt.init(seed=0)", "")
    exec(code, first)
    torch.manual_seed(0)
    model, points = first["net"](), first["Points"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.tensor([0.2, 1.0, 5.0]).double()
    loader = ExactLoader(points, 10, seed=0)
    for step in range(3):
        x, y = zip(*(points[i] for i in loader.sample_ids(0, step)), strict=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.stack(x)), torch.tensor(y), weight=weights).backward()
        optimizer.step()
    wanted = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    assert _numbers(1)[0]["Means with class weights"] == pytest.approx(wanted, rel=1e-9, abs=1e-11)


def test_the_plain_mean_with_class_weights_is_not_exact() -> None:
    """What the page says of it: were it ever exact, the page would be wrong."""
    assert _plain_weighted(1) != pytest.approx(_plain_weighted(2), rel=1e-6)


def _plain_weighted(world_size: int) -> list[float]:
    return run_ranks(_plain_weighted_rank, world_size, 60.0, environ={"CUDA_VISIBLE_DEVICES": ""})[0]


def _plain_weighted_rank() -> list[float]:
    code = BLOCKS["Means with class weights"].replace(', reduction="sum"', "")
    plain = re.sub(r"run\.backward\(.*\)\n", "loss_sum.backward()\n", code).replace(", accumulate=2", "")
    assert plain.count("loss_sum.backward()") == 1
    first: dict[str, Any] = {}
    exec(BLOCKS[FIRST], first)
    with first["run"]:
        answer = _run_block(plain, first)
    assert isinstance(answer, list), answer
    return answer
