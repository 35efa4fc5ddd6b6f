"""Save and stop: Ctrl-C, a time limit, a cancel, a script that ignores stops; and the resume after it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import WORKLOADS, Finished, begin, nothing_left, start, wait_for, wait_for_step
from warm_commands.warm_launch import launch_cli

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step

pytestmark = pytest.mark.multiprocess
SHAPE = ("--nodes", 2, "--gpus-per-node", 1)
# Longer than the others, so that it still runs when it is stopped.
LONG = (WORKLOADS / "text.yaml", "trainer.steps=130", "checkpoint.every_steps=30")
# Until it is stopped; it mostly waits.
ENDLESS = (WORKLOADS / "text.yaml", "trainer.steps=100000", "model.target=mutants:paced_transformer")


@pytest.mark.proof
@pytest.mark.proves(
    "Ctrl-C saves where it stands (130); the resumed run has the same bits",
)
@pytest.mark.slow
def test_ctrl_c_saves_between_two_checkpoints_and_the_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    undisturbed = start(tmp_path, "base", *SHAPE, *LONG)
    run = RunDir(tmp_path / "runs" / "stopped")
    command = begin(tmp_path, "stopped", *SHAPE, *LONG)
    try:
        wait_for_step(run, 30)
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=30) == 130, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    stopped = Finished(None, run)  # type: ignore[arg-type]
    output = (tmp_path / "out.txt").read_text()
    assert "Ctrl-C: saving and stopping" in output
    assert f"dist-train resume {run.path}" in output.splitlines()[-1]
    saved = newest_step(run)
    assert saved is not None
    assert saved % 30, f"saved at {saved}: where it was stopped, not where it would have saved anyway"
    assert [event["step"] for event in stopped.events("preempted")] == [saved]
    assert nothing_left(stopped.run_id)
    assert launch_cli(["status", "stopped", "--exit-code"], cwd=tmp_path, timeout_s=30).code == 130
    resumed = launch_cli(["resume", "stopped"], cwd=tmp_path, timeout_s=90)
    assert resumed.code == 0, resumed
    assert f"resumed from step {saved}" in resumed.stdout
    assert stopped.hashes == undisturbed.hashes


def test_a_time_limit_saves_and_exits_with_75(tmp_path: Path) -> None:
    stopped = start(tmp_path, "limited", "--time", "0:08", *SHAPE, *ENDLESS)
    assert stopped.cli.code == 75, stopped.cli
    assert "time limit: saving and stopping" in stopped.cli.stderr
    assert len(stopped.events("preempted")) == 1


@pytest.mark.parametrize("seconds", [1, 3])
def test_a_stop_while_agents_or_ranks_start_takes_effect(tmp_path: Path, seconds: int) -> None:
    stopped = start(tmp_path, "early", "--time", f"0:0{seconds}", *SHAPE, *ENDLESS)
    assert stopped.cli.code == 75, stopped.cli


def test_a_cancelled_run_saves_and_exits_with_77(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "cancelled")
    command = begin(tmp_path, "cancelled", *SHAPE, *ENDLESS)
    try:
        wait_for_step(run, 7)
        cancelled = launch_cli(["cancel", "cancelled"], cwd=tmp_path, timeout_s=60)
        assert cancelled.code == 0, cancelled
        assert command.wait(timeout=30) == 77
    finally:
        command.kill()
        command.wait()
    status = launch_cli(["status", "cancelled", "--exit-code"], cwd=tmp_path, timeout_s=30)
    assert status.code == 77, status
    again = launch_cli(["cancel", "cancelled"], cwd=tmp_path, timeout_s=30)
    assert again.code == 0, again


def test_a_script_without_should_stop_is_interrupted_and_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    plain, ignores_sigint = tmp_path / "plain.py", tmp_path / "ignores_sigint.py"
    saves = tmp_path / "saves_on_sigterm.py"
    mark = f"open({str(tmp_path)!r} + '/up-' + os.environ['RANK'], 'w').close()"
    waits = f"import os, time\n{mark}\ntime.sleep(600)\n"
    plain.write_text(waits)
    ignores_sigint.write_text("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + waits)
    saved = f"open({str(tmp_path)!r} + '/saved-' + os.environ['RANK'], 'w').close()"
    handler = f"def save(*_):\n    {saved}\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, save)\n"
    saves.write_text(f"import os, signal, sys\n{handler}{waits}")
    for script, presses in ((plain, 1), (saves, 1), (ignores_sigint, 2)):
        for rank in (0, 1):
            (tmp_path / f"up-{rank}").unlink(missing_ok=True)
        command = begin(tmp_path, script.stem, "--gpus-per-node", 2, script)
        try:
            wait_for(lambda: all((tmp_path / f"up-{rank}").exists() for rank in (0, 1)), "ranks at work")
            began = time.monotonic()
            for _ in range(presses):
                os.kill(command.pid, signal.SIGINT)
                time.sleep(0.3)
            assert command.wait(timeout=20) == 130, (tmp_path / "out.txt").read_text()
            assert time.monotonic() - began < 10
        finally:
            command.kill()
            command.wait()
        finished = Finished(None, RunDir(tmp_path / "runs" / script.stem))  # type: ignore[arg-type]
        assert nothing_left(finished.run_id)
        if presses == 1:
            status = launch_cli(["status", script.stem, "--exit-code"], cwd=tmp_path, timeout_s=30)
            assert status.code == 130, status
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_script_that_sigterm_stops_is_stopped_and_nothing_is_called_saved(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(f"import time\nopen({str(tmp_path)!r} + '/up', 'w').close()\ntime.sleep(600)\n")
    command = begin(tmp_path, "plain", script)
    try:
        wait_for((tmp_path / "up").exists, "the rank at work")
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait(timeout=20) == 143, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    last = (tmp_path / "out.txt").read_text().splitlines()[-1]
    assert (
        "stopped; the script does not ask whether to stop (run.should_stop); no checkpoint was saved" in last
    )
    assert "; go on with: dist-train resume " in last
    status = launch_cli(["status", "plain", "--json"], cwd=tmp_path, timeout_s=30)
    assert (json.loads(status.stdout)["phase"], json.loads(status.stdout)["exit_code"]) == ("stopped", 143)
