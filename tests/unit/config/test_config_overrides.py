"""Overrides: any YAML value, in any order, at any depth."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_train.config import Component, RunConfig, load_text

BASE = """\
model: my_model:Net
data:
  train: my_data:Train
  batch_size: 8
loss: mse
metrics:
  - accuracy
optimizer: {target: sgd, args: {lr: 0.1}}
trainer:
  epochs: 2
"""
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
# YAML takes a key of at most 1,024 characters as written; in ASCII JSON one can become 12.
KEYS = st.text(max_size=80)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


def config_of(*overrides: str) -> RunConfig:
    return load_text(BASE, "x.yaml", overrides).config


def test_setting_a_key_inside_a_bare_string_makes_it_a_mapping() -> None:
    assert config_of("model.args.width=32").model == Component(target="my_model:Net", args={"width": 32})
    assert config_of("metrics.0.args.k=3").metrics == [Component(target="accuracy", args={"k": 3})]
    assert config_of("strategy.static_graph=true").strategy.options == {"static_graph": True}


def test_a_component_is_replaced_as_a_whole_or_only_its_target() -> None:
    assert config_of("optimizer=adamw").optimizer == Component(target="adamw")
    assert config_of("optimizer.target=adamw").optimizer == Component(target="adamw", args={"lr": 0.1})
    assert config_of("optimizer.args.lr=2e-3").optimizer.args == {"lr": 0.002}


def test_a_missing_section_is_created() -> None:
    assert config_of("launch.slurm.partition=gpu").launch.slurm == {"partition": "gpu"}
    assert config_of("checkpoint.keep_best={metric: accuracy, mode: max}").checkpoint.keep_best is not None


def test_null_unsets() -> None:
    assert config_of("loss=null", "metrics=[]", "task=my_task:Task").loss is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_overrides_does_not_matter(order: tuple[int, ...]) -> None:
    given_so = ["model={target: a:B, args: {x: 1}}", "model.args.y=2", "model.args={z: 3}"]
    assert config_of(*(given_so[i] for i in order)).model == Component(target="a:B", args={"y": 2, "z": 3})


def test_the_same_override_twice_is_no_contradiction() -> None:
    assert config_of("seed=4", "seed=4").seed == 4


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_any_json_value_is_accepted(value: object) -> None:
    # JSON in ASCII is YAML, so this is how a program writes an override.
    written = json.dumps(value)
    assert config_of(f"model.args.x={written}").model.args == {"x": value}
