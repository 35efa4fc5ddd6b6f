"""`data.collate_fn` and `data.drop_last` of a config, and BatchNorm at a micro-batch of one sample."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dist_train.config import config_xxh3, load_text
from dist_train.config.schema import RunConfig
from dist_train.config.static_check import check_config
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.errors import ConfigError
from dist_train.inference.input_batches import open_inputs
from dist_train.rundir import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.rundir.result import Result
from dist_train.trainer import train

HERE = Path(__file__).parent


class Texts:
    """Sequences of different length, as (values, sum): torch's own collate cannot stack them."""

    def __init__(self, samples: int = 11) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        values = torch.arange(float(index % 3 + 1))
        return values, float(values.sum())


def pad(samples: list[tuple[Tensor, float]], width: int = 3) -> tuple[Tensor, Tensor]:
    rows = torch.stack([nn.functional.pad(x, (0, width - len(x))) for x, _ in samples])
    return rows, torch.tensor([[y] for _, y in samples])


class Padding:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, samples: list[tuple[Tensor, float]]) -> tuple[Tensor, Tensor]:
        return pad(samples, self.width)


class NotCallable:
    pass


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))


TEXT = f"""
model: {{target: "torch.nn:Linear", args: {{in_features: 3, out_features: 1}}}}
data:
  train: {{target: "{__name__}:Texts"}}
  evaluation: {{target: "{__name__}:Texts", args: {{samples: 5}}}}
  batch_size: 4
  collate_fn: {__name__}:pad
loss: mse
optimizer: {{target: sgd, args: {{lr: 0.01}}}}
trainer: {{epochs: 2, log_every_steps: 1}}
"""


def config(*changes: str) -> RunConfig:
    return load_text(TEXT, "run.yaml", changes).config


def fit(folder: Path, run_config: RunConfig) -> Result:
    folder.mkdir(exist_ok=True)
    run = Run(RankInfo.from_env({}), torch.device("cpu"), seed=0, directory=folder, run_id="t")
    result = train(run_config, run, RunDir(folder))
    assert result is not None
    return result


def test_a_collate_function_of_the_config_makes_the_batches_of_both_data_sets(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        fit(tmp_path / "without", config("data.collate_fn=null"))
    one = fit(tmp_path / "function", config())
    with_args = f'data.collate_fn={{"target": "{__name__}:pad", "args": {{"width": 3}}}}'
    made = f'data.collate_fn={{"target": "{__name__}:Padding", "args": {{"width": 3}}}}'
    assert fit(tmp_path / "args", config(with_args)).weights_hash == one.weights_hash
    assert fit(tmp_path / "class", config(made)).weights_hash == one.weights_hash
    evaluations = [
        row for row in read_metrics(RunDir(tmp_path / "function").metrics) if row["kind"] == "eval"
    ]
    assert len(evaluations) == 2


def test_predict_collates_alike() -> None:
    inputs, targets = open_inputs("evaluation", config()).read(0, 5)
    assert torch.equal(inputs, pad([Texts()[i] for i in range(5)])[0])
    assert targets.shape == (5, 1)


def test_a_collate_that_does_not_fit_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"collate_fn: .*NotCallable made a NotCallable"):
        fit(tmp_path, config(f"data.collate_fn={__name__}:NotCallable"))
    with pytest.raises(ConfigError, match=r"data.collate_fn.target.*binds no 'pads'"):
        check_config(config(f"data.collate_fn={__name__}:pads"), HERE)
    wrong = f'data.collate_fn={{"target": "{__name__}:pad", "args": {{"widht": 3}}}}'
    with pytest.raises(ConfigError, match=r"(?s)data.collate_fn.args.*takes no argument 'widht'.*width"):
        check_config(config(wrong), HERE)
    check_config(config(), HERE)


def test_drop_last_leaves_out_the_last_step_of_training_but_not_of_evaluation(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", config())
    assert (whole.steps, whole.samples) == (6, 22)
    dropped = fit(tmp_path / "dropped", config("data.drop_last=true"))
    assert (dropped.steps, dropped.samples) == (4, 16)
    accumulated = fit(tmp_path / "accumulated", config("data.drop_last=true", "trainer.accumulate=2"))
    assert (accumulated.steps, accumulated.samples) == (4, 16)
    rows = read_metrics(RunDir(tmp_path / "dropped").metrics)
    assert [row["samples"] for row in rows if row["kind"] == "train"] == [4, 8, 12, 16]


def test_a_resume_with_drop_last_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    changes = ("data.drop_last=true", "checkpoint.every_steps=1", "trainer.epochs=null")
    undisturbed = fit(tmp_path / "a", config(*changes, "trainer.steps=5"))
    fit(tmp_path / "b", config(*changes, "trainer.steps=3"))
    assert fit(tmp_path / "b", config(*changes, "trainer.steps=5")).weights_hash == undisturbed.weights_hash


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        (("data.batch_size=10",), "data.drop_last of a config"),
        (("data.batch_size=4", "trainer.accumulate=4", "data.drop_last=true"), "a batch_size of at least 8"),
    ],
)
def test_batch_norm_at_one_sample_is_refused_before_the_first_step(
    tmp_path: Path, changes: tuple[str, ...], hint: str
) -> None:
    text = config(f"model={__name__}:normed", *changes)
    with pytest.raises(ConfigError, match="BatchNorm '0' will get a micro-batch of one sample") as caught:
        fit(tmp_path, text)
    assert hint in str(caught.value)
    assert not any(row["kind"] == "train" for row in read_metrics(RunDir(tmp_path).metrics))


def test_batch_norm_trains_with_drop_last_and_with_two_samples_each(tmp_path: Path) -> None:
    normed_model = f"model={__name__}:normed"
    fit(tmp_path / "a", config(normed_model, "data.batch_size=10", "data.drop_last=true"))
    fit(tmp_path / "b", config(normed_model, "data.batch_size=9"))


def test_the_hash_of_a_config_without_them_is_as_before() -> None:
    without = config("data.collate_fn=null")
    assert config_xxh3(without) == config_xxh3(config("data.collate_fn=null", "data.drop_last=false"))
    assert config_xxh3(without) != config_xxh3(config("data.collate_fn=null", "data.drop_last=true"))
    assert config_xxh3(without) != config_xxh3(config())
