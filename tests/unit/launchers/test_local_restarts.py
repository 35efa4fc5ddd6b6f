"""The local supervisor starts its agents again as often as restarts are allowed, and not once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.jobs import JobSpec
from dist_train.rundir import RunDir
from launchers.local import Supervisor


@pytest.mark.parametrize("allowed", [0, 1, 2])
@pytest.mark.parametrize("agent", ["echo 79 > verdict-local.$n; exit 79", "kill -9 $$", "exit 0"])
def test_losses_before_an_attempt_begins_use_up_the_restarts(
    tmp_path: Path, job: Callable[..., JobSpec], agent: str, allowed: int
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    count = "n=$(ls | grep -c verdict-local); echo >> ../starts"
    argv = ["sh", "-c", f"cd {run.control}; {count}; {agent}"]
    spec = job(run_dir=run.path, max_restarts=allowed)
    environ = {"DIST_TRAIN_RDZV": "", "DIST_TRAIN_JOB": ""}
    code = Supervisor(run, spec, [{"argv": argv, "env": environ}]).run()
    assert (run.path / "starts").read_text().count("\n") == 1 + allowed
    assert code == 69
