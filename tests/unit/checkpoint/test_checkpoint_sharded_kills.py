"""Saves of a sharded model in which a rank is killed: at any change, of any rank, in every strategy."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from checkpoint_crash import Killed
from sharded_training import Layout, make, save_twice, train, whole_state

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

pytestmark = pytest.mark.multiprocess
FSDP = Layout("fsdp", 2)
CUT = Layout("tensor_parallel", 2)
COPIES = Layout("hsdp", 4)
BOTH = Layout("fsdp_tensor_parallel", 4)
STAGES = Layout("pipeline", 2)


def resume(directory: Path, attempt: int, layout: Layout) -> tuple[int, dict[str, str]]:
    with dt.init(device="cpu", seed=9, timeout_s=30):
        model, optimizer = make(layout, 5)
        manager = CheckpointManager(directory, run_id="run", attempt=attempt)
        restored = manager.load_latest({"model": model, "optimizer": optimizer})
        assert restored is not None
        return restored.step, whole_state(model, optimizer)


def killed_at(directory: Path, who: int, at: int, states: list[dict[str, str]], layout: Layout) -> int:
    """The step that is found after a kill there."""
    with pytest.raises(RanksFailed):
        run_ranks(save_twice, layout.ranks, args=(layout, directory, who, at), after_failure_s=0.5)
    found = run_ranks(resume, layout.ranks, args=(directory, 1, layout))
    step = found[0][0]
    assert found == [(step, states[step - 1])] * layout.ranks
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not (directory / "quarantine").exists()
    return step


@pytest.mark.proof
@pytest.mark.parametrize(("who", "at", "layout"), [(0, 9, FSDP), (1, 2, FSDP), (1, 2, CUT)])
def test_a_kill_in_the_middle_leaves_the_checkpoint_before(
    tmp_path: Path, who: int, at: int, layout: Layout
) -> None:
    states = run_ranks(save_twice, 2, args=(layout, tmp_path / "whole"))[0][1]
    assert killed_at(tmp_path / "killed", who, at, states, layout) == 1


def resume_and_save(before: Path | None, directory: Path, who: int, at: int, layout: Layout) -> int:
    """Note what is found after the kill before, in its folder; then go on from step 1 to the next kill.

    Args:
        at: the change at which rank `who` is killed; 0: when the save begins.

    Returns how many changes this rank made.
    """
    with dt.init(device="cpu", seed=9, timeout_s=30) as run:
        model, optimizer = make(layout, 5)
        state = {"model": model, "optimizer": optimizer}
        if before is not None:
            restored = CheckpointManager(before, run_id="run", attempt=1).load_latest(state)
            found = [None if restored is None else restored.step, whole_state(model, optimizer)]
            (before / f"found-{run.rank}.json").write_text(json.dumps(found))
        manager = CheckpointManager(directory, run_id="run")
        manager.load_latest(state)
        train(run, model, optimizer, 1, 2)
        files = Killed(directory, at if run.rank == who else 0)
        if run.rank == who and not at:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            manager.save(2, state)
        return files.count


def found_after(directory: Path, states: list[dict[str, str]], ranks: int) -> int:
    """The step that all ranks have found there, whole and with its state."""
    found = [json.loads((directory / f"found-{rank}.json").read_text()) for rank in range(ranks)]
    step = found[0][0]
    assert found == [[step, states[step - 1]]] * ranks
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not (directory / "quarantine").exists()
    return int(step)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.proves(
    "A rank killed at any of its file operations of a sharded save leaves a whole checkpoint: fsdp, hsdp, "
    "tensor_parallel, fsdp_tensor_parallel and pipeline"
)
@pytest.mark.parametrize("layout", [FSDP, COPIES, CUT, BOTH, STAGES], ids=lambda layout: layout.strategy)
def test_a_kill_at_any_change_of_any_rank(tmp_path: Path, layout: Layout) -> None:
    """Each run of the ranks looks at what the kill before has left, and is then killed itself."""
    states = run_ranks(save_twice, layout.ranks, args=(layout, tmp_path / "whole"))[0][1]

    def run(before: Path | None, directory: Path, who: int, at: int) -> list[int]:
        shutil.copytree(tmp_path / "whole" / "step-00000001", directory / "step-00000001")
        words = (before, directory, who, at, layout)
        return run_ranks(resume_and_save, layout.ranks, args=words, after_failure_s=0.5)

    counts = run(None, tmp_path / "counted", -1, 0)
    # Of copies (hsdp) one is written: the ranks of the others are killed when the save begins.
    assert sum(count > 5 for count in counts) == (2 if layout is COPIES else layout.ranks), counts
    kills = [(who, at) for who, count in enumerate(counts) for at in range(min(1, count), count + 1)]
    before, seen = None, []
    for who, at in kills:
        directory = tmp_path / f"{who}-{at}"
        with pytest.raises(RanksFailed) as caught:
            run(before, directory, who, at)
        assert "SIGKILL" in caught.value.tracebacks[who], caught.value
        seen += [] if before is None else [found_after(before, states, layout.ranks)]
        before = directory
    run(before, tmp_path / "last", -1, 0)
    assert before is not None
    seen.append(found_after(before, states, layout.ranks))
    assert set(seen) == {1, 2}
