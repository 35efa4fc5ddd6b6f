"""Injected faults: the grammar, the right rank and step, once in a run."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.env import INJECT
from dist_train.errors import ConfigError
from dist_train.resilience.fault_injection import FaultPlan, InjectedFault, parse


def _plan(text: str, rank: int, run_dir: Path | None = None) -> FaultPlan:
    return FaultPlan.from_env(rank, run_dir, {INJECT: text})


def test_grammar() -> None:
    first, second = parse("kill:rank=1,step=17; exit:rank=0,step=14,code=3 ;")
    assert (first.kind, first.rank, first.step, first.at) == ("kill", 1, 17, "step")
    assert (second.index, second.kind, second.code) == (1, "exit", 3)
    assert not FaultPlan.from_env(0, None, {})
    assert not _plan("kill:rank=1,step=17", rank=0)


@pytest.mark.parametrize(
    "text",
    ["boom:rank=0,step=1", "kill:rank=0", "kill:step=1", "kill:rank=x,step=1", "kill:rank=0,step=1,wen=2",
     "kill:rank=0,step=1,at=lunch", "kill"],
)  # fmt: skip
def test_a_wrong_entry_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a fault") as caught:
        parse(f"raise:rank=0,step=3;{text}")
    assert text in caught.value.what


def test_a_fault_fires_at_its_step_and_once_over_all_attempts(tmp_path: Path) -> None:
    text = "raise:rank=2,step=5;exit:rank=2,step=6,code=3"
    plan = _plan(text, 2, tmp_path)
    plan.at_step(4)
    with pytest.raises(InjectedFault, match="injected raise at step 5 of rank 2"):
        plan.at_step(5)
    restarted = _plan(text, 2, tmp_path)
    restarted.at_step(5)
    with pytest.raises(SystemExit) as caught:
        restarted.at_step(6)
    assert caught.value.code == 3
    _plan(text, 2, tmp_path).at_step(6)
    assert sorted(path.name for path in (tmp_path / "control").iterdir()) == ["fault-0", "fault-1"]


def test_without_a_run_directory_it_fires_once_in_the_process() -> None:
    plan = _plan("raise:rank=0,step=1", 0)
    with pytest.raises(InjectedFault):
        plan.at_step(1)
    plan.at_step(1)


def _ending(body: Callable[[], None], limit_s: float = 5.0) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=body, daemon=True)
    child.start()
    child.join(limit_s)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def test_each_kind_ends_the_process_as_named(tmp_path: Path) -> None:
    def save() -> None:
        plan = _plan("kill:rank=0,step=14,at=save", 0, tmp_path)
        plan.at_step(14)
        plan.at_save(13)
        plan.at_save(21)
        time.sleep(5)

    assert _ending(save) == -9
    assert _ending(lambda: _plan("kill:rank=0,step=1", 0).at_step(1)) == -9
    assert _ending(lambda: _plan("term:rank=0,step=1", 0).at_step(1)) == -15
    assert _ending(lambda: _plan("hang:rank=0,step=1", 0).at_step(1), limit_s=0.5) is None
