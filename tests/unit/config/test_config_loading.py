"""A valid config: numbers, short forms, layers, and the origin of every value."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dist_train.config import (
    Component,
    KeepBest,
    RunConfig,
    StrategyConfig,
    config_xxh3,
    dump_config,
    is_secret_name,
    load_config,
    load_text,
)

BASE = """\
model: {target: my_model:Net, args: {width: 16}}
data:
  train: my_data:Train
  batch_size: 8
loss: mse
optimizer: {target: sgd, args: {lr: 1e-4}}
trainer:
  epochs: 2
"""


def config_of(added: str = "", overrides: tuple[str, ...] = ()) -> RunConfig:
    return load_text(BASE + added, "x.yaml", overrides).config


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("1_000", 1000),
        ("0x1f", 31),
        (".inf", float("inf")),
        ("0", 0),
        ("true", True),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("host:29500", "host:29500"),
        ('"4:00:00"', "4:00:00"),
        ("'010'", "010"),
        ("=", "="),
    ],
)
def test_plain_values(written: str, value: object) -> None:
    args = config_of(f"schedule:\n  target: cosine\n  args:\n    x: {written}\n").schedule
    assert args is not None
    assert args.args["x"] == value
    assert type(args.args["x"]) is type(value)


def test_the_global_yaml_loader_is_untouched() -> None:
    config_of()
    assert yaml.safe_load("[1e-4, 4:00:00]") == ["1e-4", 14400]


def test_anchors_and_merges_work() -> None:
    text = BASE.replace("my_data:Train", "&d {target: my_data:Train, args: {split: a, n: 3}}")
    text = text.replace("  batch_size", "  evaluation:\n    <<: *d\n    args: {split: b}\n  batch_size")
    data = load_text(text, "x.yaml").config.data
    assert data.evaluation == Component(target="my_data:Train", args={"split": "b"})


def test_of_several_merged_mappings_the_first_wins() -> None:
    slurm = "launch:\n  slurm:\n    a: &a {x: 1, y: 1}\n    b: &b {x: 2, z: 2}\n    c: {<<: [*a, *b], z: 3}\n"
    assert config_of(slurm).launch.slurm["c"] == {"x": 1, "y": 1, "z": 3}


def test_a_bare_string_is_a_component_and_a_strategy() -> None:
    config = config_of("strategy: ddp\nmetrics:\n  - accuracy\n  - target: top_k\n    args: {k: 3}\n")
    assert config.loss == Component(target="mse")
    assert config.metrics == [Component(target="accuracy"), Component(target="top_k", args={"k": 3})]
    assert config.strategy == StrategyConfig(name="ddp")


@pytest.mark.parametrize(
    "written",
    [
        "{name: ddp, static_graph: true, bucket_mb: 4}",
        "{name: ddp, options: {static_graph: true, bucket_mb: 4}}",
        "{static_graph: true, options: {bucket_mb: 4}}",
        "{options: {bucket_mb: 4}, static_graph: true}",
    ],
)
def test_options_of_a_strategy_are_written_beside_its_name(written: str) -> None:
    strategy = config_of(f"strategy: {written}\n").strategy
    assert strategy == StrategyConfig(name="ddp", options={"static_graph": True, "bucket_mb": 4})
    assert StrategyConfig.model_validate({"name": "ddp", "static_graph": True, "bucket_mb": 4}) == strategy


def test_options_of_a_sink_stand_beside_its_name() -> None:
    sinks = "logging: {sinks: [jsonl, {name: tensorboard, flush_s: 10}]}\n"
    config = config_of(sinks)
    assert [(sink.name, sink.options) for sink in config.logging.sinks] == [
        ("jsonl", {}),
        ("tensorboard", {"flush_s": 10}),
    ]
    assert load_text(dump_config(config), "dumped.yaml").config == config
    assert "- name: tensorboard\n      flush_s: 10" in dump_config(config)
    changed = config_of(sinks, ("logging.sinks.1.flush_s=3",))
    assert changed.logging.sinks[1].options == {"flush_s": 3}


def test_a_config_without_callbacks_has_the_hash_of_one_from_before_them() -> None:
    assert config_xxh3(config_of()) == "85a61f92c3bb52d02839573c936fc051"
    assert config_xxh3(config_of("  callbacks: [ema]\n")) != config_xxh3(config_of())


def test_every_steps_replaces_the_default_every_epochs() -> None:
    assert config_of().checkpoint.every_epochs == 1
    checkpoint = config_of("checkpoint:\n  every_steps: 7\n").checkpoint
    assert (checkpoint.every_steps, checkpoint.every_epochs) == (7, None)


def test_a_task_replaces_the_loss() -> None:
    config = load_text(BASE.replace("loss: mse", "task: my_task:Task"), "x.yaml").config
    assert config.task == Component(target="my_task:Task")
    with pytest.raises(ValidationError, match="remove `metrics`"):
        RunConfig.model_validate({**config.model_dump(), "metrics": ["accuracy"]})


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config_of().seed = 3  # type: ignore[misc]


def test_the_direction_of_a_metric_is_never_guessed() -> None:
    assert KeepBest().mode == "min"
    assert KeepBest(metric="accuracy", mode="max").n == 1
    with pytest.raises(ValidationError, match="mode: max"):
        KeepBest(metric="accuracy")


def test_a_flag_wins_over_an_override_over_the_file_over_the_default() -> None:
    text = BASE + "seed: 1\nlaunch:\n  nodes: 1\n"
    flags = {"launch.nodes": (4, "--nodes 4"), "seed": (3, "--seed")}
    resolved = load_text(text, "x.yaml", ["launch.nodes=2", "launch.max_restarts=0"], flags)
    assert resolved.config.launch.nodes == 4
    assert resolved.config.launch.max_restarts == 0
    assert resolved.config.seed == 3
    assert resolved.origins["launch.nodes"] == "flag --nodes 4"
    assert resolved.origins["seed"] == "flag --seed"
    assert resolved.origins["launch.max_restarts"] == "override"
    assert resolved.origins["data.batch_size"] == "x.yaml:4"
    assert resolved.origins["launch.device"] == "default"


def test_every_leaf_has_an_origin_and_only_leaves_do() -> None:
    added = "strategy: {name: ddp, static_graph: true}\nmetrics:\n  - accuracy\n"
    origins = load_text(BASE + added, "x.yaml", ["model.args.widths=[1, 2]"]).origins
    assert origins["strategy.options.static_graph"] == "x.yaml:9"
    assert origins["metrics.0.target"] == "x.yaml:11"
    assert origins["loss.target"] == "x.yaml:5"
    assert origins["loss.args"] == "default"
    assert origins["model.args.width"] == "x.yaml:1"
    assert origins["model.args.widths"] == "override"
    assert origins["task"] == "default"
    assert "model" not in origins
    assert "trainer" not in origins


def test_a_replaced_value_is_no_origin_any_more() -> None:
    origins = load_text(BASE, "x.yaml", ["optimizer=adamw"]).origins
    assert origins["optimizer.target"] == "override"
    assert origins["optimizer.args"] == "default"


@pytest.mark.parametrize(
    ("overrides", "lengths"),
    [((), (2, None)), (("trainer.steps=100",), (None, 100)), (("trainer.epochs=5",), (5, None))],
)
def test_an_override_of_steps_or_epochs_unsets_the_files_other_one(
    overrides: tuple[str, ...], lengths: tuple[int | None, int | None]
) -> None:
    trainer = config_of("", overrides).trainer
    assert (trainer.epochs, trainer.steps) == lengths


def test_the_origin_of_an_unset_value() -> None:
    flags = {"checkpoint.every_steps": (7, "--every-steps 7")}
    resolved = load_text(BASE + "checkpoint:\n  every_epochs: 2\n", "x.yaml", ["trainer.steps=9"], flags)
    assert resolved.origins["trainer.epochs"] == "set aside by override"
    assert resolved.origins["checkpoint.every_epochs"] == "set aside by flag --every-steps 7"
    assert resolved.config.checkpoint.every_steps == 7


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_config(path).config == load_config(str(path)).config == config_of()


def test_secret_names_are_whole_words() -> None:
    assert all(map(is_secret_name, ["HF_TOKEN", "WANDB_API_KEY", "db_password", "AWS_SECRET_ACCESS_KEY"]))
    assert not any(map(is_secret_name, ["TOKENIZERS_PARALLELISM", "PATH", "MONKEY", "KEYBOARD"]))
