"""`check_config`: everything that can be checked before any process starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dist_train import registry
from dist_train.config import check_arguments, check_config, load_config
from dist_train.config.shortcuts import short_names
from dist_train.errors import ConfigError

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"
CONFIG = """\
model:
  target: my_model:Net
  args:
    width: 16
data:
  train: my_model:Train
  evaluation: my_model:Train
  batch_size: 8
loss: mse
metrics:
  - accuracy
optimizer:
  target: sgd
  args:
    lr: 0.1
trainer:
  epochs: 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known = {"strategies": ["ddp", "single"], "launchers": ["local"], "sinks": ["tensorboard", "console"]}
    known["callbacks"] = ["early_stopping", "ema"]
    monkeypatch.setattr(registry, "names", known.__getitem__)
    (tmp_path / "my_model.py").write_text(
        "raise RuntimeError('imported')\nclass Net:\n    def __init__(self, width): ...\ndef Train(): ...\n"
    )
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path


def refusal(folder: Path, *overrides: str) -> str:
    resolved = load_config(folder / "run.yaml", overrides)
    with pytest.raises(ConfigError) as caught:
        check_config(resolved.config, folder, resolved.origins)
    return str(caught.value)


def test_a_good_config_passes_without_importing_its_code(folder: Path) -> None:
    resolved = load_config(folder / "run.yaml")
    check_config(resolved.config, folder)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "model.target=my_model:Nett",
            ["override: `model.target`", "binds no 'Nett'", "did you mean `Net`?"],
        ),
        ("model.args.widht=3", ["`model.args`", "takes no argument 'widht'", "did you mean `width`?"]),
        ("task=my_tasks:Mine", ["only one of"]),
        ("data.train=my_modl:Train", ["`data.train.target`", "no module is called 'my_modl'", "'my_model'"]),
        ("data.evaluation=digts", ["`data.evaluation.target`", "did you mean `digits`?"]),
        ("loss=mze", ["`loss.target`", "did you mean `mse`?"]),
        ("metrics=[accurcy]", ["`metrics.0.target`", "did you mean `accuracy`?"]),
        ("optimizer.args.momentun=0.9", ["`optimizer.args`", "did you mean `momentum`?"]),
        ("schedule=cosin", ["`schedule.target`", "did you mean `cosine`?"]),
        ("strategy=dpp", ["`strategy.name`", "did you mean `ddp`?"]),
        ("strategy=zero", ["`strategy.name`", "choose one of: ddp, single"]),
        ("launch.launcher=locl", ["`launch.launcher`", "did you mean `local`?"]),
        ("logging.sinks=[tensorbord]", ["`logging.sinks.0.name`", "did you mean `tensorboard`?"]),
        (
            "logging.sinks=[{name: tensorboard, flush: 10}]",
            ["`logging.sinks.0.options`", "tensorboard has no option 'flush'", "did you mean `flush_s`?"],
        ),
        ("logging.sinks=[{name: tensorboard, flush_s: often}]", ["flush_s='often'", "valid number"]),
        ("logging.sinks=[console, {name: console, interval_s: 1}]", ["console is named twice"]),
        ("trainer.callbacks=[emma]", ["`trainer.callbacks.0.target`", "did you mean `ema`?"]),
        (
            "trainer.callbacks=[{target: ema, args: {decays: 0.9}}]",
            ["`trainer.callbacks.0.args`", "no argument 'decays'", "did you mean `decay`?"],
        ),
        (
            "trainer.callbacks=[{target: early_stopping, args: {metric: acuracy, mode: max}}]",
            ["`trainer.callbacks.0.args.metric`", "no metric is called 'acuracy'", "`accuracy`"],
        ),
        ("trainer.callbacks=[my_model:Nett]", ["`trainer.callbacks.0.target`", "binds no 'Nett'"]),
        (
            "checkpoint.keep_best={metric: acuracy, mode: max}",
            ["no metric is called 'acuracy'", "`accuracy`"],
        ),
    ],
)
def test_what_is_wrong_is_named(folder: Path, override: str, expected: list[str]) -> None:
    try:
        message = refusal(folder, override)
    except ConfigError as error:  # refused by the schema already
        message = str(error)
    assert [word for word in expected if word not in message] == []


def test_all_problems_are_reported_at_once_with_their_lines(folder: Path) -> None:
    text = CONFIG.replace("my_model:Net", "my_model:Nett").replace("loss: mse", "loss: mze")
    (folder / "run.yaml").write_text(text)
    message = refusal(folder, "strategy=dpp")
    assert "3 problems" in message
    assert "run.yaml:2: `model.target`" in message
    assert "run.yaml:9: `loss.target`" in message
    assert "override: `strategy.name`" in message


def test_keep_best_and_metrics_need_evaluation_data(folder: Path) -> None:
    message = refusal(folder, "data.evaluation=null", "checkpoint.keep_best={}")
    assert "`checkpoint.keep_best` compares evaluations" in message
    assert "`metrics` are measured in the evaluation" in message


def test_early_stopping_needs_evaluations_while_it_trains(folder: Path) -> None:
    early_stopping = "trainer.callbacks=[early_stopping]"
    without = "`trainer.callbacks.0` compares evaluations, and there are none"
    assert without in refusal(folder, "data.evaluation=null", "metrics=[]", early_stopping)
    assert without in refusal(folder, "trainer.evaluate_every_epochs=null", early_stopping)


def test_an_argument_without_a_default_is_needed(folder: Path) -> None:
    (folder / "needy.py").write_text(
        "class Needy:\n    def __init__(self, path, *, every, size=1): ...\n"
        "def loss(outputs, targets, reduction): ...\n"
    )
    message = refusal(
        folder, "trainer.callbacks=[{target: 'needy:Needy', args: {size: 2}}]", "loss=needy:loss"
    )
    assert "`trainer.callbacks.0.args`: 'needy:Needy' needs the argument 'every', 'path'" in message
    assert "loss" not in message, "the trainer gives a loss function its other arguments"


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of another distribution; its entry points name it without the constant."""
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [EntryPoint("plugged", "plugged_in", f"dist_train.{kind}") for kind in ("sinks", "callbacks")]
    monkeypatch.setattr(registry, "entry_points", lambda group: [one for one in found if one.group == group])
    registry._owners.cache_clear()
    yield tmp_path / "plugged_in.py"
    registry._owners.cache_clear()
    sys.modules.pop("plugged_in", None)


def test_an_entry_point_may_name_the_module_alone(plug_in: Path) -> None:
    plug_in.write_text(
        "class Mine:\n    def __init__(self, size=1): ...\n\nCALLBACK = Mine\nSINK = Mine\n", encoding="utf-8"
    )
    (plug_in.parent / "run.yaml").write_text(CONFIG)
    assert registry.load("sinks", "plugged").__name__ == "Mine"  # type: ignore[attr-defined]
    assert registry.target("callbacks", "plugged") == "plugged_in:CALLBACK"
    with pytest.raises(ConfigError, match="no argument 'siz'"):
        check_arguments("plugged", {"siz": 1}, shortcuts=short_names("callbacks"))


@pytest.mark.parametrize("text", ["import no_such_library\n", "raise OSError('broken')\n", "SINKS = 1\n"])
def test_a_sink_of_another_distribution_that_cannot_be_loaded_is_named(plug_in: Path, text: str) -> None:
    plug_in.write_text(text, encoding="utf-8")
    (plug_in.parent / "my_model.py").write_text(
        "class Net:\n    def __init__(self, width): ...\nTrain = list\n"
    )
    (plug_in.parent / "run.yaml").write_text(CONFIG)
    message = refusal(plug_in.parent, "logging.sinks=[plugged]")
    assert "`logging.sinks.0.name`: the sink 'plugged' cannot be loaded" in message


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = load_config(DIGITS)
    monkeypatch.setattr(registry, "names", {"strategies": ["ddp"], "launchers": ["local"]}.__getitem__)
    check_config(resolved.config, DIGITS.parent, resolved.origins)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://bucket/runs/{run}", None),
        ("/data/runs", "is a path, and not a URL"),
        ("s3://", "names no bucket"),
        ("s3://key:hidden@bucket", "has credentials in it"),
        ("s3://bucket/runs?X-Amz-Signature=hidden", "has a `?` or `#` in it"),
        ("s4://bucket", "no checkpoint storage is registered for s4://"),
    ],
)
def test_where_checkpoints_are_kept(url: str, found: str | None) -> None:
    resolved = load_config(DIGITS, overrides=[f"checkpoint.directory={url}"])
    if found is None:
        check_config(resolved.config, DIGITS.parent, resolved.origins)
        return
    with pytest.raises(ConfigError) as caught:
        check_config(resolved.config, DIGITS.parent, resolved.origins)
    assert "`checkpoint.directory`" in str(caught.value)
    assert found in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_checkpoints_in_a_bucket_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = registry.importlib.util.find_spec
    monkeypatch.setattr(
        registry.importlib.util,
        "find_spec",
        lambda name, *more: None if name == "obstore" else find(name, *more),
    )
    resolved = load_config(DIGITS, overrides=["checkpoint.directory=s3://bucket/runs"])
    with pytest.raises(ConfigError, match=r"pip install 'dist-train\[object-store\]'"):
        check_config(resolved.config, DIGITS.parent, resolved.origins)
