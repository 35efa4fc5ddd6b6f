"""Where the time of real runs went: the parts are the whole, and a planted delay lands in its part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import textwrap
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKLOADS, Finished, begin, start, wait_for_step
from warm_commands.warm_launch import launch_cli

from dist_train.rundir import RunDir
from dist_train.rundir.times.read_times import read_times
from dist_train.rundir.times.time_parts import PARTS, RunTime

pytestmark = pytest.mark.multiprocess
DELAYS = WORKLOADS / "planted_delays.yaml"
PLANTED_S = 2.0
# What a busy machine may add to what was planted in the steps; an import may take longer still.
MORE_S = 5.0


def times_of(run: RunDir, is_script: bool = False) -> RunTime:
    """The times of a run, whose parts are the whole of each attempt."""
    found = read_times(run, is_script)
    assert found is not None
    for attempt in found.attempts:
        assert sum(s or 0.0 for s in attempt.parts.values()) == pytest.approx(attempt.wall_s, rel=0.01)
    return found


def by_events(finished: Finished) -> float:
    """Seconds from the submission to the end, as the run's events have them."""
    lines = [json.loads(line) for line in finished.run.events.read_text().splitlines()]
    begun, ended = (datetime.fromisoformat(line["time"]).timestamp() for line in (lines[0], lines[-1]))
    return ended - begun


def counted(times: RunTime, part: str) -> float:
    """The seconds of one part, which is known."""
    found = times.parts[part]
    assert found is not None, part
    return found


@pytest.mark.proves(
    "A delay planted in an import, the data set, the forward pass of this or of another rank, an evaluation "
    "or the storage is counted there, by rank 0; the parts are all of the run's time",
    limits="one node x 2; CPU and gloo",
)
@pytest.mark.proof
def test_a_planted_delay_lands_in_its_part(tmp_path: Path) -> None:
    planted = ("import", "data", "forward", "others", "evaluation", "save")
    plant = ",".join(f"{name}:{PLANTED_S}" for name in planted)
    env = {**os.environ, "PLANT": plant}
    finished = start(tmp_path, "planted", "--gpus-per-node", 2, DELAYS, env=env)
    assert finished.cli.code == 0, finished.cli
    times = times_of(finished.run)
    assert times.wall_s == pytest.approx(by_events(finished), rel=0.01)
    slow = ("import", "data_wait", "compute", "communication", "evaluation", "save_stall")
    for part in slow:
        assert counted(times, part) >= PLANTED_S, (part, times.parts)
    for part in ("queue", "lost"):
        assert counted(times, part) == 0.0
    # What nobody has counted.
    assert counted(times, "idle") < 0.01 * times.wall_s
    # The same in result.json and in the table.
    assert finished.result.time is not None
    assert finished.result.time["total"] == pytest.approx(times.to_record()["total"], abs=1e-3)
    assert "\n  goodput " in finished.cli.stdout
    assert "lost" not in finished.cli.stdout


@pytest.mark.proves(
    "After `kill -9` of a rank the steps since the checkpoint are counted as lost; the parts of the attempts "
    "are all of the run's time",
    limits="two simulated nodes x 1; CPU and gloo",
)
@pytest.mark.proof
@pytest.mark.parametrize("rank", [0, 1])
def test_steps_that_a_kill_undoes_are_lost(tmp_path: Path, rank: int) -> None:
    env = {**os.environ, "STEP_S": "0.5", "DIST_TRAIN_INJECT": f"kill:rank={rank},step=12"}
    words = ("--nodes", 2, "--gpus-per-node", 1, DELAYS)
    finished = start(tmp_path, "killed", *words, env=env)
    assert finished.cli.code == 0, finished.cli
    times = times_of(finished.run)
    assert len(times.attempts) == 2
    assert times.wall_s == pytest.approx(by_events(finished), rel=0.01)
    first, second = times.attempts
    # Steps 9, 10 and 11 came after the checkpoint of step 8; step 12 was begun.
    lost = first.parts["lost"]
    assert lost is not None
    assert 1.5 <= lost < 1.5 + MORE_S, first
    assert second.parts["lost"] == 0.0
    # Kept were 5 slow steps, those after the third, of the first attempt and 8 - 3 of the second.
    assert 5.0 <= times.useful_s < 5.0 + MORE_S, times.parts
    assert "\n  goodput " in finished.cli.stdout
    assert "lost to a crash" in finished.cli.stdout


def test_a_stopped_and_resumed_run_counts_no_time_between(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "stopped")
    command = begin(tmp_path, "stopped", "--env", "STEP_S=0.3", DELAYS, "trainer.steps=24")
    try:
        wait_for_step(run, 8)
        live = launch_cli(["status", "stopped", "--json"], cwd=tmp_path, timeout_s=60)
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) == 130, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    now: dict[str, Any] = json.loads(live.stdout)["time"]
    assert now["total"]["compute"] >= 5 * 0.3, now
    assert now["total"]["lost"] == 0.0, now
    assert sum(now["total"].values()) == pytest.approx(now["wall_s"], rel=0.01)
    stopped = times_of(run)
    assert counted(stopped, "lost") < 0.05
    assert counted(stopped, "idle") < 0.01 * stopped.wall_s
    resumed = launch_cli(["resume", "stopped"], cwd=tmp_path, timeout_s=100)
    assert resumed.code == 0, resumed
    times = times_of(run)
    assert [attempt.attempt for attempt in times.attempts] == [0, 1]
    assert times.attempts[0].wall_s == pytest.approx(stopped.wall_s)
    status = launch_cli(["status", "stopped"], cwd=tmp_path, timeout_s=60)
    assert "in 2 attempts" in status.stdout, status


def test_a_users_own_loop_is_counted_where_our_code_is_called(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    shutil.copy(DELAYS.with_suffix(".py"), tmp_path)
    script.write_text(
        textwrap.dedent(
            """
            import time
            import planted_delays
            import torch
            import dist_train as dt

            run = dt.init(seed=0)
            model = dt.prepare(planted_delays.Line())
            data = dt.loader(planted_delays.Points(), batch_size=8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            manager = dt.checkpoint.CheckpointManager(run.dir / "checkpoints", every_steps=4)
            state = {"model": model, "optimizer": optimizer, "data": data}
            manager.load_latest(state)
            for step, (x, y) in enumerate(data, 1):
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                manager.save_if_due(step, state)
            """
        )
    )
    plant = ",".join(f"{name}:1.5" for name in ("import", "data", "forward", "others", "save"))
    env = {**os.environ, "PLANT": plant}
    finished = start(tmp_path, "own", "--gpus-per-node", 2, script, env=env)
    assert finished.cli.code == 0, finished.cli
    times = times_of(finished.run, is_script=True)
    for part in ("import", "data_wait", "compute", "communication", "save_stall"):
        assert counted(times, part) >= 1.5, (part, times.parts)
    assert times.parts["evaluation"] is None, "no evaluation loader of ours was used"


def test_a_plain_script_has_start_import_and_the_rest(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(1.5)\n")
    (tmp_path / "plain.py").write_text("import time\nimport slow_module\n\ntime.sleep(3)\n")
    finished = start(tmp_path, "plain", tmp_path / "plain.py")
    assert finished.cli.code == 0, finished.cli
    times = times_of(finished.run, is_script=True)
    assert 1.5 <= counted(times, "import") < 1.5 + MORE_S
    assert 3.0 <= counted(times, "compute") < 3.0 + MORE_S
    unknown = [part for part in PARTS if times.parts[part] is None]
    assert unknown == ["restore", "data_wait", "communication", "evaluation", "save_stall"]
    status = launch_cli(["status", "plain"], cwd=tmp_path, timeout_s=60)
    assert "not known: restore, data wait, communication (exposed), evaluation, save stall" in status.stdout
