"""Callbacks in one process: order, context, rules, early end, state in the checkpoint."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_trainer import PLAIN, config, hashes
from test_trainer import start as start_run

from dist_train import registry
from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.checkpoint.weights.model_io import load_model
from dist_train.config.schema import RunConfig
from dist_train.env import INJECT
from dist_train.errors import CheckpointError, ConfigError
from dist_train.observability.sink import SinkContext
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.rundir.result import Result
from dist_train.trainer import Callback, CallbackContext
from dist_train.trainer.callback_hooks import check_callbacks

# The user's own module, as a config names it.
MODULE = '''
from dist_train.trainer import Callback

class Journal(Callback):
    """Writes down every call; every list is one run's."""

    calls = []

    def __init__(self, note=""):
        self.note = note

    def on_start(self, context):
        self.calls.append(("on_start", context.step))

    def on_step_end(self, context):
        self.calls.append(("on_step_end", context.step, context.epoch))
        context.run.log(step=context.step, twice=2 * context.step)

    def on_evaluation_end(self, context, metrics):
        self.calls.append(("on_evaluation_end", context.step, sorted(metrics)))

    def on_checkpoint(self, context, step):
        self.calls.append(("on_checkpoint", step))

    def on_stop(self, context):
        self.calls.append(("on_stop", context.step))

    def on_end(self, context):
        self.calls.append(("on_end", context.step, self.note))
'''
EVALUATED = "data.evaluation={target: 'test_trainer:Line', args: {samples: 5}}"


def plain(*changes: str) -> RunConfig:
    return config(*changes, text=PLAIN)


def train_with(folder: Path, run_config: RunConfig, *callbacks: Callback, attempt: int = 0) -> Result:
    """One attempt in one process, with callbacks that the config does not name."""
    from dist_train.trainer import run_training

    def train(*args: Any) -> Result | None:
        return run_training.train(*args, callbacks=callbacks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_trainer.train", train)
        return start_run(folder, run_config, attempt=attempt)


def test_a_config_names_a_callback_of_its_own_and_it_is_called_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    callbacks = "trainer.callbacks=[{target: 'journal:Journal', args: {note: hello}}]"
    start_run(tmp_path / "run", plain(callbacks, EVALUATED, "trainer.steps=3", "checkpoint.every_epochs=1"))
    assert sys.modules["journal"].Journal.calls == [
        ("on_start", 0),
        ("on_step_end", 1, 0),
        ("on_step_end", 2, 0),
        ("on_step_end", 3, 0),
        ("on_evaluation_end", 3, ["loss"]),
        ("on_checkpoint", 3),
        ("on_end", 3, "hello"),
    ]
    logged = [one for one in read_metrics(RunDir(tmp_path / "run").metrics) if one["kind"] == "callback"]
    assert [(one["step"], one["twice"]) for one in logged] == [(1, 2), (2, 4), (3, 6)]


class Does(Callback):
    """Calls a function after step 2."""

    def __init__(self, act: Callable[[CallbackContext], Any]) -> None:
        self._act = act

    def on_step_end(self, context: CallbackContext) -> None:
        if context.step == 2:
            self._act(context)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda context: torch.rand(1), "torch's RNG"),
        (lambda context: random.random(), "python's `random`"),
        (lambda context: np.random.rand(), "NumPy's global RNG"),
    ],
)
def test_a_callback_that_draws_from_a_global_rng_is_named(
    tmp_path: Path, draw: Callable[[CallbackContext], Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"the callback Does drew from {words} in on_step_end"):
        train_with(tmp_path / "run", plain(), Does(draw))


def test_a_generator_of_its_own_changes_no_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    quiet = start_run(tmp_path / "quiet", plain())
    drawn = train_with(tmp_path / "run", plain(), Does(lambda context: torch.rand(1, generator=generator)))
    assert (drawn.weights_hash, drawn.metrics_hash) == (quiet.weights_hash, quiet.metrics_hash)


def test_what_a_callback_raises_is_the_users_own_exception_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        train_with(tmp_path / "run", plain(), Does(lambda context: 1 / 0))
    assert caught.value.__notes__ == ["raised in on_step_end of the callback Does, at step 2"]


def test_a_context_gives_what_a_callback_needs(tmp_path: Path) -> None:
    seen: list[CallbackContext] = []
    train_with(tmp_path / "run", plain(), Does(seen.append))
    (context,) = seen
    assert (context.step, context.epoch, context.total_steps) == (2, 0, 7)
    assert (context.run.rank, context.run.world_size, context.run.is_main) == (0, 1, True)
    assert context.run.directory == tmp_path / "run"
    assert set(context.metrics) == {"loss"}
    assert isinstance(context.model, torch.nn.Linear)
    with pytest.raises(TypeError):
        context.metrics["loss"] = 0.0  # type: ignore[index]


def test_a_request_ends_the_run_with_a_result_at_the_next_logged_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_config = plain(EVALUATED, "trainer.log_every_steps=3", "trainer.steps=20")
    request = Does(lambda context: context.request_stop("good enough"))
    result = train_with(tmp_path / "run", run_config, request)
    assert (result.status, result.exit_code, result.steps) == ("done", 0, 3)
    assert "ended early at step 3: Does: good enough" in capsys.readouterr().out
    again = train_with(tmp_path / "run", run_config, Does(lambda context: None), attempt=1)
    assert hashes(again) == hashes(result), "a run that has ended stays ended"
    longer = start_run(tmp_path / "run", run_config, attempt=2)
    assert longer.steps == 20, "without the callback, training goes on"


STOPPED = (
    EVALUATED,
    "trainer={epochs: 30, log_every_steps: 4, callbacks: [{target: early_stopping, args: {patience: 2, "
    "min_delta: 0.01}}, {target: ema, args: {decay: 0.9}}]}",
    "checkpoint={every_steps: 5}",
)


@pytest.mark.parametrize("step", [3, 14])
def test_early_stopping_and_ema_killed_and_resumed_give_the_same_bits(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = start_run(tmp_path / "quiet", plain(*STOPPED))
    assert 14 < quiet.steps < 90
    monkeypatch.setenv(INJECT, f"raise:rank=0,step={step}")
    with pytest.raises(InjectedFault):
        start_run(tmp_path / "loud", plain(*STOPPED))
    assert hashes(start_run(tmp_path / "loud", plain(*STOPPED), attempt=1)) == hashes(quiet)


class Averages(Callback):
    """The moving average by hand."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.average: torch.Tensor | None = None

    def on_start(self, context: CallbackContext) -> None:
        self.average = context.model.weight.detach().clone()  # type: ignore[operator]

    def on_step_end(self, context: CallbackContext) -> None:
        assert self.average is not None
        weight: Any = context.model.weight
        self.average = self._decay * self.average + (1 - self._decay) * weight.detach()


def test_ema_is_the_average_it_is_evaluated_and_it_can_be_loaded(tmp_path: Path) -> None:
    by_hand = Averages(0.9)
    ema = "trainer.callbacks=[{target: ema, args: {decay: 0.9}}]"
    raw = start_run(tmp_path / "raw", plain(EVALUATED))
    averaged = train_with(tmp_path / "run", plain(EVALUATED, ema), by_hand)
    assert averaged.weights_hash == raw.weights_hash, "the trained weights are the same"
    assert averaged.metrics["loss"] > raw.metrics["loss"], (
        "the evaluation sees the averages, which lag behind"
    )
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    newest = max(RunDir(tmp_path / "run").checkpoints.glob("step-*"))
    load_model(newest, model, entry="ema")
    for typo, meant in (("emma", "ema"), ("modle", "model")):
        with pytest.raises(CheckpointError, match=f"has no module '{typo}', but model, ema") as raised:
            load_model(newest, model, entry=typo)
        assert f"did you mean '{meant}'?" in str(raised.value.hint)
    assert by_hand.average is not None
    torch.testing.assert_close(model.weight.detach(), by_hand.average)
    assert {"ema/weight", "ema/bias"} <= set(parse_manifest((newest / "manifest.json").read_bytes()).tensors)


def test_a_checkpoint_from_before_the_callbacks_opens_and_the_change_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_run(tmp_path / "run", plain("trainer.steps=3"))
    ema = "trainer.callbacks=[ema]"
    start_run(tmp_path / "run", plain("trainer.steps=5", ema), attempt=1)
    assert "holds no state of 'callbacks': it begins without" in caplog.text
    assert "holds no state of 'ema'" in caplog.text
    caplog.clear()
    both = "trainer.callbacks=[early_stopping, ema]"
    start_run(tmp_path / "run", plain("trainer.steps=6", both), attempt=2)
    assert "the callbacks are EarlyStopping, EMA and were EMA at the save" in caplog.text
    caplog.clear()
    start_run(tmp_path / "run", plain("trainer.steps=7"), attempt=3)
    assert "holds state of 'ema', which this run does not use" in caplog.text


class Masked(torch.nn.Linear):
    """Has a constant buffer with infinities, as an attention mask is, and one of whole numbers."""

    def __init__(self) -> None:
        super().__init__(1, 1, dtype=torch.float64)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("count", torch.tensor(3))


def test_ema_copies_what_has_no_average(tmp_path: Path) -> None:
    changes = ["model=test_trainer_callbacks:Masked", "trainer.callbacks=[ema]"]
    start_run(tmp_path / "run", plain(*changes, "trainer.steps=4"))
    start_run(tmp_path / "run", plain(*changes, "trainer.steps=7"), attempt=1)
    model = Masked()
    model.get_buffer("mask").zero_()
    load_model(max(RunDir(tmp_path / "run").checkpoints.glob("step-*")), model, entry="ema")
    assert (model.get_buffer("mask").tolist(), model.get_buffer("count").item()) == ([0.0, -torch.inf], 3)


class Counter(Callback):
    """Keeps a count."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, context: CallbackContext) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def test_the_state_of_a_callback_goes_through_the_checkpoint(tmp_path: Path) -> None:
    train_with(tmp_path / "run", plain("trainer.steps=4"), Counter())
    counter = Counter()
    train_with(tmp_path / "run", plain("trainer.steps=7"), counter, attempt=1)
    assert counter.steps == 7


class DrawsAtSave(Callback):
    """Draws where no hook is called."""

    def state_dict(self) -> dict[str, Any]:
        return {"noise": torch.rand(1)}


class AsksAtSave(Callback):
    """Asks to stop when the checkpoint is written already."""

    def on_checkpoint(self, context: CallbackContext, step: int) -> None:
        context.request_stop("late")


class Model(Callback):
    """Takes the trainer's own entry of the checkpoint."""

    checkpoint_key = "model"


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (DrawsAtSave(), "the callback DrawsAtSave drew from torch's RNG in state_dict"),
        (AsksAtSave(), "the callback AsksAtSave asked to stop in on_checkpoint"),
    ],
)
def test_what_would_depend_on_when_checkpoints_are_saved_is_refused(
    tmp_path: Path, callback: Callback, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train_with(tmp_path / "run", plain("checkpoint.every_steps=2"), callback)


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        ([Counter(), Counter()], "two have the name 'Counter'"),
        ([object()], "a object is no Callback"),
        ([Model()], "Model has the checkpoint_key 'model'"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(callbacks: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_callbacks(callbacks)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("{target: early_stopping, args: {metric: accuracy}}", "mode=None for the metric 'accuracy'"),
        ("{target: early_stopping, args: {metric: los, mode: min}}", "did you mean 'loss'"),
        ("{target: ema, args: {decay: 1.5}}", r"EMA: decay=1\.5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, args: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start_run(tmp_path / "run", plain(EVALUATED, f"trainer.callbacks=[{args}]"))


class RudeSink:
    """Draws, and changes its record."""

    def __init__(self, context: SinkContext) -> None:
        torch.rand(1)

    def record(self, record: Any) -> None:
        random.random()
        torch.rand(1)
        record["metrics"].clear()

    def flush(self) -> None:
        np.random.rand()

    def close(self) -> None:
        """Nothing is open."""


class Observes(Callback):
    """Notes the metrics of the evaluations and the RNG state at the end."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_evaluation_end(self, context: CallbackContext, metrics: Mapping[str, float]) -> None:
        self.seen.append(dict(metrics))

    def on_end(self, context: CallbackContext) -> None:
        self.seen += [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[2]]


def test_a_sink_changes_nothing_that_the_training_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = (EVALUATED, "metrics=[test_trainer_callbacks:size]")
    quiet, loud = Observes(), Observes()
    train_with(tmp_path / "quiet", plain(*changes), quiet)
    rude = EntryPoint("rude", "test_trainer_callbacks:RudeSink", "dist_train.sinks")
    monkeypatch.setattr(registry, "entry_points", lambda group: [rude] if group == rude.group else [])
    registry._owners.cache_clear()
    try:
        train_with(tmp_path / "loud", plain(*changes, "logging.sinks=[rude]"), loud)
    finally:
        registry._owners.cache_clear()
    assert "size" in quiet.seen[0]
    assert loud.seen == quiet.seen


def size(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """A metric: the mean size of the outputs."""
    return outputs.abs().sum().item(), len(outputs)
