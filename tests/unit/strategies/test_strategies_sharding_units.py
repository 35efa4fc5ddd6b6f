"""Which modules of a sharded model are units."""

from __future__ import annotations

import pytest
from torch import nn

from dist_train.errors import ConfigError
from dist_train.strategies.fully_sharded.sharding_units import choose_units, describe_units


class Block(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)


class Stack(nn.Module):
    """An embedding, blocks in a list, and a head of the embedding's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 5, bias=False)


def names(*arguments: object) -> list[str]:
    return [unit.name for unit in choose_units(Stack(), *arguments)]  # type: ignore[arg-type]


def test_by_default_each_member_of_a_list_is_one() -> None:
    units = choose_units(Stack(), None)
    assert [unit.name for unit in units] == ["blocks.0", "blocks.1"]
    assert describe_units(units) == "2 x Block and the rest"


def test_by_class_and_by_pattern_the_innermost_first() -> None:
    assert names(["Block", "*.up"]) == ["blocks.0.up", "blocks.1.up", "blocks.0", "blocks.1"]
    assert names(["head"]) == ["head"]
    assert names([]) == []
    assert describe_units([]) == "the whole model as one"


def test_by_size_what_an_inner_unit_has_does_not_count() -> None:
    # up: 40, down: 36, embedding and head: 20 parameters.
    assert names(None, 40) == ["blocks.0.up", "blocks.1.up"]
    assert names(None, 41) == ["blocks.0", "blocks.1"]
    assert names(None, 1000) == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["Blok"], "'Blok' is neither a class nor the name of a module in Stack"),
        (["blocks"], "'blocks' names 'blocks', a ModuleList"),
        (["layers.*"], "'layers.*' is neither"),
    ],
)
def test_a_name_that_fits_nothing_is_refused(wanted: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match="units") as caught:
        choose_units(Stack(), wanted)
    assert said in str(caught.value)


def test_the_nearest_name_is_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_units(Stack(), ["Blok"])
    assert caught.value.hint == "did you mean 'Block'?"


def test_a_parameter_that_two_units_share_is_refused() -> None:
    model = Stack()
    model.head.weight = model.embedding.weight
    assert choose_units(model, None)
    with pytest.raises(ConfigError, match="shared between units") as caught:
        choose_units(model, ["head"])
    assert "'embedding.weight' in the rest, 'head.weight' in unit 'head'" in str(caught.value)


def test_trained_parameters_of_one_unit_have_one_dtype() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"'1.weight' is torch.float64 and '0.weight' torch.float32"):
        choose_units(model, [])
    assert [unit.name for unit in choose_units(model, ["1"])] == ["1"]
    model[1].requires_grad_(False)
    assert choose_units(model, []) == []
