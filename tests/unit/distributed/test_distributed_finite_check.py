"""A number that is not finite on one rank is known on all of them at the same call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.distributed.control_group import Control
from dist_train.distributed.finite_check import EVERY, FiniteCheck, NonFinite
from dist_train.errors import NonFiniteError
from dist_train.testing import run_ranks

NAN, ONE = torch.tensor(float("nan")), torch.tensor(1.0)


def test_nothing_is_read_before_the_sixteenth_call() -> None:
    check, answers = FiniteCheck(Control()), []
    for step in range(1, EVERY + 3):
        answers.append(check.add(step, [NAN if step == 3 else ONE], [ONE]))
    assert answers == [None] * (EVERY + 1) + [NonFinite((3,), (0,), EVERY)]
    assert check.settle() is None


def test_settle_reads_everything_and_tells_a_gradient_from_a_loss() -> None:
    check = FiniteCheck(Control())
    for step in range(1, 20):
        check.add(step, [ONE], [torch.tensor(float("inf")) if step in (17, 19) else ONE])
    assert check.settle() == NonFinite((17, 19), (), 19)
    assert check.settle() is None


def test_what_is_forgotten_is_not_found() -> None:
    check = FiniteCheck(Control())
    check.add(1, [NAN])
    check.forget()
    assert check.settle() is None


def test_the_tensors_may_be_of_any_kind() -> None:
    check = FiniteCheck(Control())
    numbers = [
        torch.tensor(70000.0, dtype=torch.bfloat16),
        torch.tensor([1e300], dtype=torch.float64),
        torch.ones(3),
    ]
    check.add(1, numbers)
    assert check.settle() is None


def loop(folder: Path, bad_rank: int, steps: int) -> tuple[int, str]:
    """A loop of a script's own; the steps done and the error."""
    with dt.init(seed=0, device="cpu") as run:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        manager = CheckpointManager(folder, every_steps=4)
        for step in range(1, steps + 1):
            loss = model(torch.ones(1)).sum()
            if (run.rank, step) == (bad_rank, 10):
                loss = loss * float("nan")
            try:
                run.check_finite(loss, step=step)
                manager.save_if_due(step, {"model": model})
            except NonFiniteError as error:
                return step, str(error)
    return steps, ""


def test_a_loop_of_ones_own_stops_on_all_ranks_before_the_next_save(tmp_path: Path) -> None:
    answers = run_ranks(loop, 2, args=(tmp_path / "checkpoints", 1, 40))
    assert [step for step, _ in answers] == [12, 12]
    assert all("step 10: the loss is not finite on rank 1" in text for _, text in answers)
    assert all("step-00000008" in text for _, text in answers)
    assert CheckpointManager(tmp_path / "checkpoints").steps() == [4, 8]


def skipping(bad_rank: int) -> list[bool]:
    with dt.init(seed=0, device="cpu") as run:
        model = nn.Linear(1, 1)
        found = []
        for step in range(3):
            loss = model(torch.ones(1)).sum()
            model.zero_grad()
            loss.backward()
            if step == 1 and run.rank == bad_rank:
                model.weight.grad = torch.full((1, 1), float("inf"))
            found.append(run.all_finite(loss, model=model))
        return found


def test_a_loop_that_skips_is_given_the_same_answer_on_all_ranks() -> None:
    assert run_ranks(skipping, 3, args=(2,)) == [[True, False, True]] * 3


def test_a_call_without_a_number_is_refused() -> None:
    with dt.init(device="cpu") as run, pytest.raises(dt.errors.UsageError, match="nothing to look at"):
        run.check_finite()


def test_the_last_steps_are_looked_at_when_the_run_is_closed() -> None:
    def rank() -> list[str]:
        run = dt.init(seed=0, device="cpu")
        for step in range(1, 41):
            run.check_finite(NAN if step == 38 and run.rank == 1 else ONE, step=step)
        try:
            run.close()
        except NonFiniteError as error:
            return [error.what]
        return []

    assert run_ranks(rank, 2) == [[], ["step 38: the loss is not finite on rank 1"]]


@pytest.mark.parametrize(("given", "named"), [(None, "call 3"), (30, "step 30")])
def test_the_error_names_a_step_only_where_one_was_given(given: int | None, named: str) -> None:
    with dt.init(seed=0, device="cpu") as run:
        for call in range(1, 4):
            run.check_finite(NAN if call == 3 else ONE, step=None if given is None else 10 * call)
        with pytest.raises(NonFiniteError, match=f"^{named}: the loss is not finite on rank 0") as raised:
            run.finite_check.settle()
    assert ("run.check_finite(loss, step=step)" in str(raised.value.hint)) == (given is None)


def test_the_first_call_is_named_where_steps_begin_at_0_in_each_epoch() -> None:
    with dt.init(seed=0, device="cpu") as run:
        for step in (9, 0, 1):
            run.check_finite(NAN if step in (9, 1) else ONE, step=step)
        with pytest.raises(NonFiniteError, match=r"^step 9:"):
            run.finite_check.settle()


def test_a_run_that_is_left_for_another_error_shows_that_one() -> None:
    def script() -> None:
        with dt.init(seed=0, device="cpu") as run:
            run.check_finite(NAN)
            raise ValueError("of the script")

    with pytest.raises(ValueError, match="of the script"):
        script()
