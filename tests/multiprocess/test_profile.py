"""`launch --profile` of real runs over gloo: planted delays, kills, stops; the trainer and own loops."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKLOADS, Launch, begin, wait_for
from warm_commands.warm_launch import launch_cli

from dist_train.profiling.trace_file import find_traces, read_trace, trace_path
from dist_train.profiling.trace_summary import TraceSummary, summarise
from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess

# Knows only torch. The delays: each batch is read for 40 ms, rank 1 begins its backward 60 ms after rank 0,
# and each step sleeps 50 ms where nothing runs.
DELAYED = """
import os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.ones(64)

model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    loss = model(batch).sum()
    time.sleep(0.06 if rank == 1 else 0)
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.05)
    optimizer.step()
dist.destroy_process_group()
"""


def summary_of(run: RunDir, attempt: int, rank: int) -> TraceSummary:
    return summarise(read_trace(trace_path(run, attempt, rank)), rank)


def files_of(run: RunDir) -> list[str]:
    return sorted(str(path.relative_to(run.profile)) for path in run.profile.rglob("*") if path.is_file())


def test_planted_delays_land_in_their_part(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DELAYED)
    words = ("--gpus-per-node", 2, "--profile", "5:9", "--profile-ranks", "all")
    finished = launch("p", *words, "train.py", timeout_s=200)
    assert finished.cli.code == 0, finished.cli
    assert "profile of steps 5 to 9: profile/attempt-0/rank-0.trace.json.gz" in finished.cli.stderr
    assert files_of(finished.run) == [f"attempt-0/rank-{rank}.trace.json.gz" for rank in range(2)]
    first, second = (summary_of(finished.run, 0, rank) for rank in range(2))
    for one in (first, second):
        parts = one.parts
        assert (one.first, one.steps) == (5, 5)
        assert parts.data_wait_s >= 5 * 0.040
        assert parts.stall_s >= 5 * 0.050
        # One product forward, one for the weight's gradient.
        assert one.flops == {"fp32": 5 * 2 * 2 * 4 * 64 * 64}
        together = parts.compute_s + parts.communication_s + parts.data_wait_s + parts.stall_s
        assert together == pytest.approx(parts.whole_s, rel=0.01)
    # Rank 0 waits for rank 1 in the all-reduce with nothing to compute; rank 1's own sleep is stall.
    assert first.parts.communication_s >= 5 * 0.050
    assert second.parts.stall_s >= 5 * 0.110
    assert first.parts.communication_s > second.parts.communication_s
    shown = launch_cli(["profile", "p"], cwd=tmp_path, timeout_s=60)
    assert shown.code == 0, shown
    assert "p, attempt 1, steps 5 to 9 since its start, CPU" in shown.stdout
    as_json = json.loads(launch_cli(["profile", "p", "--rank", "1", "--json"], cwd=tmp_path).stdout)
    assert [rank["data_wait_s"] for rank in as_json["ranks"]] == [pytest.approx(second.parts.data_wait_s)]


DIGITS = (str(WORKLOADS / "digits.yaml"), "checkpoint.every_steps=4")


@pytest.mark.proof
def test_a_kill_within_the_steps_leaves_no_half_file_and_the_next_attempt_writes_its_own(
    launch: Launch,
) -> None:
    kill = ("--env", "DIST_TRAIN_INJECT=kill:rank=1,step=8")
    finished = launch("k", "--gpus-per-node", 2, *kill, *DIGITS, 'launch.profile="6:9"', timeout_s=200)
    assert finished.cli.code == 0, finished.cli
    assert len(finished.events("attempt_started")) == 2
    # SIGKILL ends rank 0 in the middle of its profile, too: what is there is whole, or nothing is.
    assert set(files_of(finished.run)) - {"attempt-0/rank-0.trace.json.gz"} == {
        "attempt-1/rank-0.trace.json.gz"
    }
    found = summary_of(finished.run, 1, 0)
    assert (found.first, found.steps) == (6, 4)
    assert found.flops_per_step > 0
    assert found.parts.data_wait_s > 0


OWN_LOOP = """
import time, torch, dist_train as dt
run = dt.init(seed=0)
model = dt.prepare(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(4000, 8))
steps = 0
for (batch,) in dt.loader(data, batch_size=8):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    steps += 1
    if steps == 9 and run.is_main:
        open("nine", "w").close()
    time.sleep(0.1)
    if run.should_stop():
        print("stopped after", steps, flush=True)
        raise SystemExit(75)
"""


@pytest.mark.proof
def test_a_stop_within_the_steps_writes_those_that_are_complete(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_LOOP)
    command = begin(tmp_path, "s", "--gpus-per-node", 2, "--profile", "4:50", "train.py")
    try:
        wait_for(lambda: (tmp_path / "nine").exists(), "the ninth step")
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) == 130, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    output = (tmp_path / "out.txt").read_text()
    [stopped] = {int(line.rsplit(" ", 1)[1]) for line in output.splitlines() if "stopped after" in line}
    run = RunDir(tmp_path / "runs" / "s")
    found: Any = summary_of(run, 0, 0)
    assert (found.first, found.steps) == (4, stopped - 3), output
    assert f"profile of steps 4 to {stopped}" in output
    assert list(find_traces(run)) == [0]
    assert found.parts.stall_s >= 0.09 * found.steps


@pytest.mark.proof
def test_steps_that_are_never_reached_are_said_and_a_run_without_profile_has_no_folder(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(DELAYED)
    late = launch("late", "--gpus-per-node", 2, "--profile", "40:42", "train.py")
    assert (late.cli.code, late.run.profile.exists()) == (0, False), late.cli
    assert "no profile: this attempt ended after step 12, before step 40" in late.cli.stderr
    without = launch("without", "--gpus-per-node", 2, "train.py")
    assert (without.cli.code, without.run.profile.exists()) == (0, False), without.cli
    assert "profile" not in without.cli.stderr
