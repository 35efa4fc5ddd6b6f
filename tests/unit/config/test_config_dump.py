"""The dump loads back equal, the hash covers what determines the results, the schema has each key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_train.config import RunConfig, config_xxh3, dump_config, json_schema, load_config, load_text, show

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"
BASE: dict[str, Any] = {
    "model": {"target": "my_model:Net", "args": {"width": 16, "names": ["a", "010", "4:00:00"], "deep": {}}},
    "data": {"train": "my_data:Train", "batch_size": 8},
    "loss": "mse",
    "optimizer": {"target": "sgd", "args": {"lr": 1e-4}},
    "trainer": {"epochs": 2},
    "strategy": {"name": "ddp", "static_graph": True},
    "launch": {"time": "4:00:00", "env": {"A": "1", "B": "yes", "C": "two\nlines # here"}},
}
TEXTS = st.text() | st.sampled_from(
    ["1e-4", "4:00:00", "010", "no", "~", "", " x", "a: b", "#", "2024-01-01", "<<"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
ARGS = st.dictionaries(
    TEXTS,
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def base(**changes: Any) -> RunConfig:
    return RunConfig.model_validate({**BASE, **changes})


@settings(max_examples=80, deadline=None)
@given(ARGS)
def test_a_dump_reads_back_equal(args: dict[str, Any]) -> None:
    config = base(model={"target": "my_model:Net", "args": args})
    again = load_text(dump_config(config), "x.yaml").config
    assert again == config
    assert json.dumps(again.model_dump()) == json.dumps(config.model_dump())
    assert config_xxh3(again) == config_xxh3(config)


def test_a_dump_is_stable_in_block_style_and_in_the_schemas_order() -> None:
    text = dump_config(base())
    assert dump_config(load_text(text, "x.yaml").config) == text
    assert list(yaml.safe_load(text)) == list(RunConfig.model_fields)
    assert "strategy:\n  name: ddp\n  static_graph: true\n" in text
    assert "loss: mse\n" in text
    # Quoted for every YAML reader, not only for ours.
    assert yaml.safe_load(text)["launch"]["time"] == "4:00:00"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"launch": {"nodes": 4}},
        {"logging": {"level": "debug"}},
        {"resilience": {"grace_s": 5}},
        {"strategy": {"name": "ddp", "options": {"static_graph": True}}},
        {"data": {"train": {"target": "my_data:Train"}, "batch_size": 8, "workers": 0}},
    ],
)
def test_settings_without_effect_on_results_do_not_change_the_hash(changes: dict[str, Any]) -> None:
    assert config_xxh3(base(**changes)) == config_xxh3(base())


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"model": "my_model:Net"},
        {"trainer": {"epochs": 3}},
        {"threads_per_rank": 2},
        {"deterministic": "same_world_size"},
        {"strategy": "ddp"},
    ],
)
def test_settings_that_change_results_change_the_hash(changes: dict[str, Any]) -> None:
    assert config_xxh3(base(**changes)) != config_xxh3(base())
    assert len(config_xxh3(base())) == 32


def test_the_hash_is_frozen() -> None:
    # Checkpoints hold this hash: a change of it, a new key's default included, must be a decision.
    assert config_xxh3(base()) == "c9f7ea6b1e18378c7c90d6863a1553a8"


def test_show_names_where_each_value_came_from() -> None:
    resolved = load_text(
        dump_config(base()),
        "x.yaml",
        ["seed=3", "strategy.static_graph=false"],
        {"launch.nodes": (2, "--nodes 2")},
    )
    lines = show(resolved)
    assert "seed: 3   # override" in lines
    assert "  static_graph: false   # override" in lines
    assert "  nodes: 2   # flag --nodes 2" in lines
    line = dump_config(base()).splitlines().index("loss: mse") + 1
    assert f"loss: mse   # x.yaml:{line}" in lines
    assert load_text("\n".join(lines), "y.yaml").config == resolved.config


def test_each_leaf_of_the_example_is_shown_with_its_origin() -> None:
    resolved = load_config(DIGITS)
    lines = show(resolved)
    bare = [line for line in lines if "#" not in line and not line.endswith(":")]
    # A list's origin is beside its key, its items' origins are beside them.
    assert bare == []
    assert load_text("\n".join(lines), "y.yaml").config == resolved.config


def test_the_json_schema_accepts_what_the_loader_accepts() -> None:
    schema = json_schema()
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    assert list(checker.iter_errors(yaml.safe_load(dump_config(base())))) == []
    bad = {**BASE, "trainr": {}, "seed": -1, "loss": 3}
    assert len(list(checker.iter_errors(bad))) == 3


def test_every_key_has_a_description() -> None:
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    silent = [
        name
        for section in sections
        for name, key in section.get("properties", {}).items()
        if "description" not in key
    ]
    assert silent == []
