"""A loss or gradient that is not finite: the run stops, passes the step over, or goes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo  # an optimizer loads it, and it sets an environment variable: not inside a test
from nonfinite_cases import Line, net
from safetensors.torch import load_file

import dist_train as dt
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config.load import load_text
from dist_train.config.schema import RunConfig
from dist_train.data.exact_loader import ExactLoader
from dist_train.distributed.run import Run
from dist_train.env import INJECT, RankInfo
from dist_train.errors import ExitCode, NonFiniteError
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.rundir.result import Result
from dist_train.testing import run_ranks
from dist_train.trainer.rng_isolation import seed_for_model
from dist_train.trainer.run_training import train

LINE = """
model: nonfinite_cases:net
data: {train: {target: nonfinite_cases:Line}, batch_size: 4}
loss: torch.nn.functional:mse_loss
optimizer: {target: torch.optim:SGD, args: {lr: 0.1}}
trainer: {epochs: 3, log_every_steps: 5}
checkpoint: {every_steps: 3}
"""
BAD = "data.train.args={bad: [23]}"


def config(*changes: str) -> RunConfig:
    return load_text(LINE, "run.yaml", changes).config


def start(folder: Path, run_config: RunConfig, attempt: int = 0) -> Result:
    """One attempt with one process."""
    folder.mkdir(exist_ok=True)
    run = Run(RankInfo.from_env({}), torch.device("cpu"), directory=folder, run_id="test", attempt=attempt)
    result = train(run_config, run, RunDir(folder))
    assert result is not None
    return result


# The steps of the three epochs that hold sample 23.
BAD_STEPS = [
    10 * epoch + step + 1
    for epoch in range(3)
    for step in range(10)
    if 23 in ExactLoader(Line(), 4, seed=0).sample_ids(epoch, step)
]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(RunDir(folder).checkpoints / f"step-{step:08d}" / "model.safetensors")


def trained_without(
    left_out: list[int], steps: int, optimizer: type[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """The weights after a plain loop over the same steps that does not run some of them."""
    seed_for_model(0)
    model = net()
    made = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    loader, dataset = ExactLoader(Line(), 4, seed=0), Line()
    for step in range(1, steps + 1):
        if step in left_out:
            continue
        ids = loader.sample_ids(*divmod(step - 1, 10))
        x, y = (torch.stack(part) for part in zip(*(dataset[i] for i in ids), strict=True))
        made.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        made.step()
    return model.state_dict()


def test_by_default_the_run_stops_and_names_step_samples_and_the_last_finite_checkpoint(
    tmp_path: Path,
) -> None:
    with pytest.raises(NonFiniteError) as raised:
        start(tmp_path / "run", config(BAD))
    error = raised.value
    first = BAD_STEPS[0]
    assert error.exit_code == ExitCode.NON_FINITE == 73
    ids = ExactLoader(Line(), 4, seed=0).sample_ids(0, first - 1)
    assert error.what == (
        f"step {first}: the loss is not finite on rank 0 (samples {', '.join(map(str, ids))})"
    )
    last_good = (first - 1) // 3 * 3
    assert f"the last finite checkpoint is that of step {last_good}, " in str(error.hint)
    assert CheckpointManager(RunDir(tmp_path / "run").checkpoints).steps()[-1] == last_good
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path / "run", last_good).values())


def test_it_stops_before_the_end_of_a_run_that_never_logs_or_saves_in_between(tmp_path: Path) -> None:
    quiet = ("checkpoint.every_steps=1000", "trainer={epochs: 3, log_every_steps: 1000}")
    with pytest.raises(NonFiniteError, match=f"step {BAD_STEPS[0]}: the loss") as raised:
        start(tmp_path / "run", config(BAD, *quiet))
    assert "there is no checkpoint yet" in str(raised.value.hint)


@pytest.mark.parametrize("clip", ["null", "1.0"])
def test_an_infinite_gradient_of_a_finite_loss_stops_the_run_too(tmp_path: Path, clip: str) -> None:
    changes = ("loss=null", "task=nonfinite_cases:InfiniteGradient", f"trainer.clip_norm={clip}")
    with pytest.raises(NonFiniteError, match=r"the gradients are not finite \(samples .*\b0\b"):
        start(tmp_path / "run", config(*changes))


@pytest.mark.parametrize(
    ("name", "args"), [("SGD", "{lr: 0.1}"), ("Adam", "{lr: 0.1}"), ("Adam", "{lr: 0.1, fused: true}")]
)
def test_skip_leaves_the_step_out_and_nothing_else(
    tmp_path: Path, name: str, args: str, caplog: pytest.LogCaptureFixture
) -> None:
    skip = (BAD, "trainer.on_nonfinite=skip", f"optimizer={{target: 'torch.optim:{name}', args: {args}}}")
    result = start(tmp_path / "run", config(*skip))
    assert (result.status, result.steps) == ("done", 30)
    wanted = trained_without(BAD_STEPS, 30, getattr(torch.optim, name))
    found = weights(tmp_path / "run", 30)
    for key, tensor in wanted.items():
        torch.testing.assert_close(found[key], tensor)
    said = [record.message for record in caplog.records if "update was left out" in record.message]
    assert [int(line.split()[1].rstrip(":")) for line in said] == BAD_STEPS


def test_skip_puts_the_statistics_of_a_batch_norm_back(tmp_path: Path) -> None:
    model = "model={target: nonfinite_cases:net, args: {norm: true}}"
    start(tmp_path / "run", config(BAD, model, "trainer.on_nonfinite=skip"))
    found = weights(tmp_path / "run", 30)
    assert all(torch.isfinite(tensor).all() for tensor in found.values())
    assert int(found["0.num_batches_tracked"]) == 30 - len(BAD_STEPS)


def test_skip_gives_up_where_every_step_is_not_finite(tmp_path: Path) -> None:
    every = "data.train.args={bad: " + str(list(range(40))) + "}"
    with pytest.raises(NonFiniteError, match="so were the 15 steps before it"):
        start(tmp_path / "run", config(every, "trainer.on_nonfinite=skip"))


def test_rollback_goes_back_to_the_last_checkpoint_and_leaves_the_step_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = start(tmp_path / "run", config(BAD, "trainer.on_nonfinite=rollback"))
    assert (result.status, result.steps) == ("done", 30)
    wanted = trained_without(BAD_STEPS, 30, torch.optim.SGD)
    for key, tensor in wanted.items():
        torch.testing.assert_close(weights(tmp_path / "run", 30)[key], tensor)
    said = [record.message for record in caplog.records if "and on without step" in record.message]
    assert len(said) == 3
    assert f"back to step {(BAD_STEPS[0] - 1) // 3 * 3}, and on without step {BAD_STEPS[0]}" in said[0]
    assert [record["step"] for record in read_metrics(RunDir(tmp_path / "run").metrics)] == [
        step for step in range(5, 31, 5) if step not in BAD_STEPS
    ]


def test_a_restart_after_a_rollback_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollback = config(BAD, "trainer.on_nonfinite=rollback")
    undisturbed = start(tmp_path / "one", rollback)
    monkeypatch.setenv(INJECT, f"raise:rank=0,step={BAD_STEPS[1] + 8}")
    with pytest.raises(InjectedFault):
        start(tmp_path / "two", rollback)
    monkeypatch.delenv(INJECT)
    again = start(tmp_path / "two", rollback, attempt=1)
    assert (again.weights_hash, again.state_hash) == (undisturbed.weights_hash, undisturbed.state_hash)


def test_rollback_needs_a_checkpoint(tmp_path: Path) -> None:
    late = ("trainer.on_nonfinite=rollback", "checkpoint.every_steps=1000")
    with pytest.raises(NonFiniteError, match="no checkpoint yet to roll back to"):
        start(tmp_path / "run", config(BAD, *late))


def test_rollback_to_a_checkpoint_that_was_removed_ends_the_run(tmp_path: Path) -> None:
    bad = BAD_STEPS[0]
    removes = f"{{target: 'nonfinite_cases:RemovesCheckpoints', args: {{after_step: {bad - 1}}}}}"
    changes = (BAD, "trainer.on_nonfinite=rollback", f"trainer.callbacks=[{removes}]")
    with pytest.raises(NonFiniteError, match=f"step {bad}: the loss is not finite on rank 0") as raised:
        start(tmp_path / "run", config(*changes))
    error = raised.value
    checkpoints = RunDir(tmp_path / "run").checkpoints
    newest = (bad - 1) // 3 * 3
    assert (
        error.cause
        == f"{checkpoints} holds no checkpoint to roll back to, though step {newest} was saved there"
    )
    assert "is that of step" not in str(error.hint)


def rank(folder: Path, action: str) -> tuple[str, dict[str, torch.Tensor] | None]:
    """One of several ranks: the error that it ends with, or the weights at the end."""
    with dt.init(seed=0) as run:
        run_config = config(BAD, f"trainer.on_nonfinite={action}")
        try:
            train(run_config, run, RunDir(folder))
        except NonFiniteError as error:
            return error.what, None
    return "", weights(folder, 30)


def test_all_ranks_stop_together_for_the_loss_of_one(tmp_path: Path) -> None:
    answers = run_ranks(rank, 2, args=(tmp_path / "run", "stop"))
    ids = ExactLoader(Line(), 4, seed=0).sample_ids(0, BAD_STEPS[0] - 1)
    bad_rank = ids.index(23) % 2
    shown = ", ".join(map(str, ids[bad_rank::2]))
    what = f"step {BAD_STEPS[0]}: the loss is not finite on rank {bad_rank} (samples {shown})"
    assert [error for error, _ in answers] == [what, what]


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_all_ranks_leave_the_step_of_one_out(tmp_path: Path, action: str) -> None:
    for error, found in run_ranks(rank, 2, args=(tmp_path / "run", action)):
        assert (error, found is not None) == ("", True)
        for key, tensor in trained_without(BAD_STEPS, 30, torch.optim.SGD).items():
            torch.testing.assert_close(found[key], tensor)
