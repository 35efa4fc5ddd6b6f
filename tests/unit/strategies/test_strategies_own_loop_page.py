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

from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess

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
    wanted |= {"Evaluation", "An early stop", "Accumulation 2"}
    assert wanted <= set(BLOCKS)
