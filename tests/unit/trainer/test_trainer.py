"""One process trains from a config: accuracy, resume to the same bits, stop, records, result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer loads it, and it sets an environment variable: not inside a test
from torch import Tensor, nn

from dist_train.config.load import load_text
from dist_train.config.schema import RunConfig
from dist_train.distributed.control_group import Control
from dist_train.distributed.run import Run
from dist_train.env import INJECT, RankInfo
from dist_train.errors import CheckpointError, ConfigError, Preempted
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.resilience.stop import StopFlag, StopVote
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.rundir.result import Result, read_result
from dist_train.rundir.stop_file import StopFile
from dist_train.trainer.run_training import train

# Dropout, augmentation, batch norm, momentum and a schedule: everything that a resume may lose.
DIGITS = """
model: {target: dist_train.models.convnet:ConvNet, args: {width: 8, dropout: 0.2, batch_norm: true}}
data:
  train: {target: dist_train.datasets.digits:train, args: {augment: true}}
  evaluation: dist_train.datasets.digits:evaluation
  batch_size: 128
loss: torch.nn.functional:cross_entropy
metrics: [dist_train.trainer.metrics:accuracy]
optimizer: {target: torch.optim:AdamW, args: {lr: 0.01}}
schedule: dist_train.trainer.schedules:cosine
trainer: {epochs: 2, log_every_steps: 5, clip_norm: 1.0}
checkpoint: {every_steps: 7}
"""


def config(*changes: str, text: str = DIGITS) -> RunConfig:
    return load_text(text, "run.yaml", changes).config


def start(
    folder: Path,
    run_config: RunConfig,
    attempt: int = 0,
    vote: Callable[[], bool] | None = None,
    progress: Callable[[str, int | None], None] | None = None,
) -> Result:
    """One attempt of a run with one process."""
    folder.mkdir(exist_ok=True)
    run = Run(
        RankInfo.from_env({}),
        torch.device("cpu"),
        seed=run_config.seed,
        directory=folder,
        run_id="test",
        attempt=attempt,
        progress=progress,
        vote=vote or StopVote(Control(), StopFlag(folder / "board"), every=1).agreed,
    )
    result = train(run_config, run, RunDir(folder))
    assert result is not None
    return result


def hashes(result: Result) -> tuple[str, str, str]:
    return result.weights_hash, result.state_hash, result.metrics_hash


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return start(tmp_path_factory.mktemp("undisturbed"), config())


def test_digits_learn_and_the_result_holds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = start(
        tmp_path / "digits",
        config(
            "trainer.epochs=6",
            "checkpoint={every_epochs: 3}",
            "model.args={width: 16}",
            "data.train.args={}",
            "data.batch_size=64",
        ),
    )
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "training digits: 1438 samples, 6 epochs, batch 64 = 1 rank x 64 x 1, single on cpu, seed 0"
    )
    assert result == read_result(RunDir(tmp_path / "digits"))
    assert result.metrics["accuracy"] > 0.95
    assert (result.steps, result.epochs, result.samples) == (138, 6, 6 * 1438)
    assert (result.status, result.attempts, result.world_size, result.run_id) == ("done", 1, 1, "test")
    assert result.samples_per_s > 0
    saved = sorted(path.name for path in RunDir(tmp_path / "digits").checkpoints.glob("step-*"))
    assert saved == ["step-00000069", "step-00000138"]


def test_there_is_a_record_of_each_logged_step_and_each_evaluation(
    undisturbed: Result, tmp_path: Path
) -> None:
    start(tmp_path / "run", config())
    records = read_metrics(RunDir(tmp_path / "run").metrics)
    assert [(record["kind"], record["step"], record["epoch"], record["samples"]) for record in records] == [
        ("train", 5, 0, 640),
        ("train", 10, 0, 1280),
        ("eval", 12, 0, 1438),
        ("train", 15, 1, 1438 + 384),
        ("train", 20, 1, 1438 + 1024),
        ("eval", 24, 1, 2876),
        ("train", 24, 1, 2876),
    ]
    assert {(record["total_steps"], record["epochs"]) for record in records} == {(24, 2)}
    first, last = records[0], records[-1]
    assert {"loss", "lr", "metrics", "samples_per_s", "data_wait"} <= set(first)
    assert first["lr"] > last["lr"] > 0
    assert set(first["metrics"]) == {"accuracy"}
    assert hashes(start(tmp_path / "again", config())) == hashes(undisturbed)


@pytest.mark.parametrize("step", [3, 10, 12, 17, 23])
def test_killed_at_any_step_and_resumed_gives_the_same_bits(
    tmp_path: Path,
    undisturbed: Result,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(INJECT, f"raise:rank=0,step={step}")
    with pytest.raises(InjectedFault):
        start(tmp_path / "run", config())
    assert read_result(RunDir(tmp_path / "run")) is None
    result = start(tmp_path / "run", config(), attempt=1)
    assert hashes(result) == hashes(undisturbed)
    assert result.attempts == 2
    resumed = 7 * (step // 7) if step > 7 else None
    said = capsys.readouterr().out
    assert (f"resumed from step {resumed} (epoch" in said) == (resumed is not None)


def test_another_seed_gives_other_bits(tmp_path: Path, undisturbed: Result) -> None:
    other = hashes(start(tmp_path / "run", config("seed=1")))
    assert all(one != two for one, two in zip(other, hashes(undisturbed), strict=True))


def test_one_more_save_or_evaluation_changes_no_later_bit(tmp_path: Path, undisturbed: Result) -> None:
    changes = ("checkpoint.every_steps=2", "trainer.evaluate_every_epochs=null", "data.workers=1")
    result = start(tmp_path / "run", config(*changes))
    assert result.weights_hash == undisturbed.weights_hash
    assert result.metrics == undisturbed.metrics


def test_a_stop_saves_at_that_step_and_the_next_attempt_goes_on(tmp_path: Path, undisturbed: Result) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    stop_file = StopFile.create(folder / "board", local_world_size=1)
    stop_file.stop = 1
    with pytest.raises(Preempted, match="stopped at step 1 as asked, and saved"):
        start(folder, config())
    assert (RunDir(folder).checkpoints / "step-00000001" / "manifest.json").exists()
    stop_file.stop = 0
    assert hashes(start(folder, config(), attempt=1)) == hashes(undisturbed)


def test_every_step_evaluation_and_save_is_marked_as_progress(tmp_path: Path) -> None:
    marks: list[tuple[str, int | None]] = []
    start(
        tmp_path / "run", config("trainer.epochs=1"), progress=lambda what, step: marks.append((what, step))
    )
    assert [step for _, step in marks if step is not None] == list(range(1, 13))
    said = [what for what, _ in marks]
    assert said.index("step 7") + 1 == said.index("the save of step 7")
    assert said[-2:] == ["the evaluation after step 12", "the save of step 12"]


def test_a_save_that_does_not_fit_the_grace_is_not_begun(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    hasty = config("checkpoint.every_steps=1", "resilience.grace_s=0.0001")
    with pytest.raises(Preempted, match=r"stopped at step 3 .* not possible, last good checkpoint: step 2"):
        start(tmp_path / "run", hasty, vote=lambda: next(asked))
    assert not (RunDir(tmp_path / "run").checkpoints / "step-00000003").exists()


def test_a_finished_run_started_again_only_writes_its_result(
    tmp_path: Path, undisturbed: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start(tmp_path / "run", config())
    lines = RunDir(tmp_path / "run").metrics.read_text()
    RunDir(tmp_path / "run").result.unlink()
    again = start(tmp_path / "run", config(), attempt=1)
    assert hashes(again) == hashes(first) == hashes(undisturbed)
    assert (again.metrics, again.steps) == (first.metrics, first.steps)
    assert RunDir(tmp_path / "run").metrics.read_text() == lines
    assert "resumed from step 24 (epoch 3, sample 0)" in capsys.readouterr().out


def test_another_batch_size_is_refused_on_resume(tmp_path: Path) -> None:
    start(tmp_path / "run", config("trainer.epochs=1"))
    with pytest.raises(CheckpointError, match=r"data\.batch_size has changed"):
        start(tmp_path / "run", config("data.batch_size=64"), attempt=1)


def test_keep_best_keeps_the_best_evaluation(tmp_path: Path) -> None:
    # The least accuracy counts as the best here, so that it is not among the last ones.
    best = "checkpoint={every_epochs: 1, keep_last: 2, keep_best: {metric: accuracy, mode: min}}"
    start(tmp_path / "run", config(best, "trainer.epochs=4"))
    records = [r for r in read_metrics(RunDir(tmp_path / "run").metrics) if r["kind"] == "eval"]
    least = min(records, key=lambda record: record["metrics"]["accuracy"])
    kept = {int(path.name[5:]) for path in RunDir(tmp_path / "run").checkpoints.glob("step-*")}
    assert kept == {36, 48, least["step"]}
    assert least["step"] < 36
    with pytest.raises(ConfigError, match="no metric is called 'precision'"):
        start(tmp_path / "other", config(best.replace("accuracy", "precision"), "trainer.epochs=1"))


TEXT = """
model: {target: "dist_train.models.transformer:ByteTransformer", args: {width: 16, depth: 1, context: 32}}
data: {train: {target: "dist_train.datasets.text:TextBytes", args: {context: 32}}, batch_size: 24}
task: dist_train.trainer.task:NextTokenTask
optimizer: {target: "torch.optim:AdamW", args: {lr: 0.01}}
trainer: {steps: 10, log_every_steps: 1, accumulate: 2}
checkpoint: {every_steps: 4}
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_tied_transformer_learns_text_and_resumes(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config = config(f"trainer.precision={precision}", text=TEXT)
    quiet = start(tmp_path / "quiet", run_config)
    losses = [record["loss"] for record in read_metrics(RunDir(tmp_path / "quiet").metrics)]
    assert losses[0] == pytest.approx(math.log(256), rel=0.01)  # per token, not per window
    assert losses[-1] < 0.8 * losses[0]
    monkeypatch.setenv(INJECT, "raise:rank=0,step=7")
    with pytest.raises(InjectedFault):
        start(tmp_path / "loud", run_config)
    assert hashes(start(tmp_path / "loud", run_config, attempt=1)) == hashes(quiet)


class Line(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """y = 3 x, in float64."""

    def __init__(self, samples: int) -> None:
        self.x = torch.linspace(-1, 1, samples, dtype=torch.float64).reshape(-1, 1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], 3 * self.x[index]


def slope() -> nn.Module:
    return nn.Linear(1, 1, dtype=torch.float64)


PLAIN = f"""
model: {__name__}:slope
data: {{train: {{target: "{__name__}:Line", args: {{samples: 11}}}}, batch_size: 4}}
loss: {{target: "torch.nn:MSELoss"}}
optimizer: {{target: "torch.optim:SGD", args: {{lr: 0.1}}}}
trainer: {{steps: 7, log_every_steps: 1}}
"""


def test_accumulation_and_the_divisor_match_a_plain_loop(tmp_path: Path) -> None:
    """Steps of 4, 4, 3 samples: the loss of each step is the mean over that step's samples."""
    losses: dict[int, list[float]] = {}
    for accumulate in (1, 3):
        folder = tmp_path / str(accumulate)
        start(folder, config(f"trainer.accumulate={accumulate}", text=PLAIN))
        losses[accumulate] = [record["loss"] for record in read_metrics(RunDir(folder).metrics)]
    assert losses[1] == pytest.approx(losses[3], rel=1e-12)
    assert losses[1] == pytest.approx(_plain_loop(), rel=1e-12)


def _plain_loop() -> list[float]:
    from dist_train.data.permutation import Permutation
    from dist_train.trainer.rng_isolation import seed_for_model

    seed_for_model(0)
    model, data, losses = slope(), Line(11), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(7):
        order = [int(Permutation(11, 0, step // 3)[i]) for i in range(11)]
        ids = order[4 * (step % 3) : 4 * (step % 3) + 4]
        loss = nn.functional.mse_loss(model(data.x[ids]), 3 * data.x[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("optimizer.args={rate: 1}", "optimizer: torch.optim:SGD cannot be called.*rate"),
        ("loss.args={reduction: mean}", "loss: reduction='mean' cannot be chosen"),
        ("model=builtins:dict", "model: builtins:dict made a dict, not an nn.Module"),
        ("model=math:pi", "math:pi is 3.14.*cannot be called"),
        (
            "metrics=[dist_train.trainer.metrics:accuracy, dist_train.trainer.metrics:accuracy]",
            "two are called",
        ),
        ("strategy=dpp", "no strategy is called 'dpp'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        start(tmp_path / "run", config(change, text=PLAIN))
    assert _matches(words, str(error.value)), str(error.value)


def _matches(words: str, text: str) -> Any:
    import re

    return re.search(words, text, re.DOTALL)


def test_result_is_one_json_object(tmp_path: Path) -> None:
    start(tmp_path / "run", config(text=PLAIN))
    record = json.loads(RunDir(tmp_path / "run").result.read_text())
    assert {
        "schema_version",
        "run_id",
        "status",
        "exit_code",
        "weights_hash",
        "state_hash",
        "metrics_hash",
    } <= set(record)
    assert record["metrics"].keys() == {"loss"}
