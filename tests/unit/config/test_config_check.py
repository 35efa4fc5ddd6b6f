"""`check_config`: everything that can be found wrong before any process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train import registry
from dist_train.config import check_config, load_config
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
    known = {"strategies": ["ddp", "single"], "launchers": ["local"], "sinks": ["tensorboard"]}
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
    ("override", "words"),
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
        ("launch.launcher=locl", ["`launch.launcher`", "did you mean `local`?"]),
        ("logging.sinks=[tensorbord]", ["`logging.sinks`", "did you mean `tensorboard`?"]),
        (
            "checkpoint.keep_best={metric: acuracy, mode: max}",
            ["no metric is called 'acuracy'", "`accuracy`"],
        ),
    ],
)
def test_what_does_not_hold_is_named(folder: Path, override: str, words: list[str]) -> None:
    try:
        said = refusal(folder, override)
    except ConfigError as error:  # found already when it was loaded
        said = str(error)
    assert [word for word in words if word not in said] == []


def test_all_is_told_at_once_with_its_line(folder: Path) -> None:
    text = CONFIG.replace("my_model:Net", "my_model:Nett").replace("loss: mse", "loss: mze")
    (folder / "run.yaml").write_text(text)
    said = refusal(folder, "strategy=dpp")
    assert "3 problems" in said
    assert "run.yaml:2: `model.target`" in said
    assert "run.yaml:9: `loss.target`" in said
    assert "override: `strategy.name`" in said


def test_what_needs_an_evaluation_wants_its_data(folder: Path) -> None:
    said = refusal(folder, "data.evaluation=null", "checkpoint.keep_best={}")
    assert "`checkpoint.keep_best` compares evaluations" in said
    assert "`metrics` are measured in the evaluation" in said


def test_the_example_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = load_config(DIGITS)
    monkeypatch.setattr(registry, "names", {"strategies": ["ddp"], "launchers": ["local"]}.__getitem__)
    check_config(resolved.config, DIGITS.parent, resolved.origins)
