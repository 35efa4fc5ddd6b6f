"""`resume`: the same run, planned again; refused while it runs. No process is started here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run.find_run import open_run
from dist_train.cli.verbs import resume as verb
from dist_train.jobs import JobState
from dist_train.jobs.gpus import Gpu
from dist_train.rundir.events import read_events


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launcher's wait, replaced: the run directories that would have been followed."""
    import dist_train.registry as registry

    found: list[str] = []
    local: Any = registry.load("launchers", "local")
    monkeypatch.setattr(local.__class__, "wait", lambda self, handle, run_dir: found.append(run_dir) or 0)
    return found


def test_the_same_run_goes_on(make_run: Callable[..., Any], dist_train: Any, waited: list[str]) -> None:
    made = make_run("a-1", nodes=2, env=(("A", "b c"),)).began().finished(3)
    (made.run.plan).mkdir()
    (made.run.plan / "of-another-launcher.sh").write_text("old")
    said = dist_train("resume", "a-1", "--max-restarts", 7)
    assert said.code == 0
    assert waited == [str(made.run.path)]
    again = open_run("a-1")
    assert (again.spec.run_id, again.spec.run_dir) == (made.spec.run_id, made.run.path)
    assert (again.spec.max_restarts, again.spec.nodes, again.spec.env) == (7, 2, (("A", "b c"),))
    assert again.handle.text == f"local:{os.getpid()}"
    assert sorted(path.name for path in made.run.plan.iterdir()) == ["agents.json"]
    assert [event["kind"] for event in read_events(made.run)][-1] == "submitted"
    assert "goes on from the start (no checkpoint)" in said.err


def test_another_size_is_planned_with_a_notice(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str]
) -> None:
    made = make_run("a-1", nodes=1, procs_per_node=4).began().preempted()
    said = dist_train("resume", "--nodes", 2, "--gpus-per-node", 3)
    assert said.code == 0
    assert "6 ranks instead of 4" in said.err
    record = json.loads((made.run.plan / "agents.json").read_text())
    assert [node["env"]["DIST_TRAIN_NPROC_PER_NODE"] for node in record["nodes"]] == ["3", "3"]


def test_memory_means_nothing_to_a_launcher_that_limits_none(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str]
) -> None:
    make_run("a-1").began().finished(3)
    said = dist_train("resume", "--mem", "4G")
    assert said.code == 2
    assert "--mem means nothing to the local launcher" in said.err
    assert waited == []


def test_the_limit_of_logs_may_be_changed_and_ranks_that_are_gone_are_not_shown(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str]
) -> None:
    made = make_run("a-1", nodes=1, procs_per_node=4, show_ranks="1,3").began().preempted()
    said = dist_train("resume", "--log-limit", "8M", "--gpus-per-node", 2)
    assert said.code == 0
    assert "stdout is shown of rank 1: this size lacks some of --show-ranks 1,3" in said.err
    again = open_run("a-1").spec
    assert (again.log_limit_bytes, again.show_ranks) == (8 << 20, "1")
    agent = json.loads((made.run.plan / "agents.json").read_text())["nodes"][0]["argv"]
    assert f"--log-limit={8 << 20}" in agent


def test_accepting_changed_code_holds_for_one_start(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str]
) -> None:
    make_run("a-1").began().finished(3)
    dist_train("resume", "--accept-code-change")
    assert open_run("a-1").spec.accept_code_change
    make_run_again = open_run("a-1").run
    os.utime(make_run_again.job, (1, 1))
    dist_train("resume")
    assert not open_run("a-1").spec.accept_code_change


def test_a_run_that_is_done_has_nothing_left(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str]
) -> None:
    made = make_run("a-1").began().finished(0)
    before = made.run.job.read_bytes()
    said = dist_train("resume")
    assert (said.code, said.out) == (0, "a-1 is done (exit code 0): there is nothing to resume\n")
    assert (waited, made.run.job.read_bytes()) == ([], before)


def test_a_running_run_is_refused_with_its_owner(
    make_run: Callable[..., Any], dist_train: Any, own: Any, waited: list[str]
) -> None:
    made = make_run("a-1").began()
    owner = own(made.run)
    said = dist_train("resume")
    assert said.code == 78
    assert f"a-1 is at work already: agent 0 is pid {owner.pid}" in said.err
    assert "dist-train cancel a-1" in said.err
    assert waited == []


def test_a_run_in_an_unknown_state_is_not_started_twice(
    make_run: Callable[..., Any], dist_train: Any, pretend: Any
) -> None:
    run = make_run("a-1").run
    run.job.write_text(run.job.read_text().replace('"launcher": "local"', '"launcher": "pretend"'))
    pretend.answer = JobState("unknown", "squeue", "no answer")
    said = dist_train("resume")
    assert said.code == 69
    assert "is unknown" in said.err


@pytest.mark.parametrize("seconds_ago", [0, 10**6])
def test_a_fresh_submission_is_active_and_an_old_one_that_never_began_is_not(
    make_run: Callable[..., Any], dist_train: Any, waited: list[str], seconds_ago: int
) -> None:
    made = make_run("a-1")
    now = made.run.job.stat().st_mtime
    os.utime(made.run.job, (now, now - seconds_ago))
    assert dist_train("resume").code == (0 if seconds_ago else 78)


def test_two_at_once_start_it_once(make_run: Callable[..., Any], dist_train: Any, waited: list[str]) -> None:
    make_run("a-1").began().finished(3)
    with verb.resume_lock(open_run("a-1")):
        said = dist_train("resume")
    assert said.code == 78
    assert "another `dist-train resume a-1` is running" in said.err
    assert dist_train("resume").code == 0


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    make_run: Callable[..., Any], here: Path, dist_train: Any
) -> None:
    make_run("a-1").began().finished(3)
    before = {path: path.is_file() and path.read_bytes() for path in here.rglob("*")}
    said = dist_train("resume", "--dry-run", "--nodes", 2)
    record, _ = json.JSONDecoder().raw_decode(said.out)
    assert len(record["nodes"]) == 2
    assert {path: path.is_file() and path.read_bytes() for path in here.rglob("*")} == before


def test_a_run_directory_that_was_moved_goes_on_where_it_is(
    make_run: Callable[..., Any], here: Path, dist_train: Any, waited: list[str]
) -> None:
    made = make_run("a-1").began().finished(3)
    made.run.path.rename(here / "runs" / "moved")
    assert dist_train("resume", "moved").code == 0
    assert open_run("moved").spec.run_dir == here / "runs" / "moved"


def _gpus(*uuids: str) -> list[Gpu]:
    return [Gpu(i, uuid, "gpu", 0, 1) for i, uuid in enumerate(uuids)]


def test_the_same_gpus_come_first(make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run("a-1", procs_per_node=2, device="cuda", gpus=("c", "d")).began().finished(3)
    monkeypatch.setattr(verb, "visible_gpus", lambda: _gpus("a", "b", "c", "d"))
    opened = open_run("a-1")
    assert verb.changed_spec(opened, verb.Changes())[0].gpus == ("c", "d")
    assert verb.changed_spec(opened, verb.Changes(gpus_per_node=3))[0].gpus == ("c", "d", "a")
    assert verb.changed_spec(opened, verb.Changes(gpus_per_node=1))[0].gpus == ("c",)


def test_too_few_gpus_names_both_numbers(
    make_run: Callable[..., Any], dist_train: Any, monkeypatch: pytest.MonkeyPatch, waited: list[str]
) -> None:
    make_run("a-1", procs_per_node=2, device="cuda", gpus=("a", "b")).began().finished(3)
    monkeypatch.setattr(verb, "visible_gpus", lambda: _gpus("a"))
    said = dist_train("resume", "--nodes", 2)
    assert said.code == 78
    assert "4 GPUs are needed (2 node(s) x 2), 1 are visible here" in said.err
    assert waited == []


def test_detached_prints_the_handle_by_which_the_run_is_found(
    make_run: Callable[..., Any], dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dist_train.registry as registry
    from dist_train.jobs import JobHandle

    make_run("a-1").began().finished(3)
    local: Any = registry.load("launchers", "local")
    monkeypatch.setattr(local.__class__, "detach", lambda self, handle, run_dir: JobHandle("local:4711"))
    said = dist_train("resume", "--detach")
    assert (said.code, said.out) == (0, "local:4711\n")
    assert open_run("local:4711").run.path.name == "a-1"


@pytest.mark.parametrize(
    ("handle", "command"),
    [("slurm:7", "sbatch YOUR-SCRIPT"), ("kubernetes:train", "kubectl apply -f YOUR-MANIFESTS")],
)
def test_a_run_that_was_submitted_by_hand_is_resumed_by_hand(
    make_run: Callable[..., Any], dist_train: Any, handle: str, command: str
) -> None:
    made = make_run("a-1")
    record = json.loads(made.run.job.read_text())
    launcher = handle.partition(":")[0]
    made.run.job.write_text(json.dumps({**record, "handle": handle, "launcher": launcher, "by_hand": True}))
    said = dist_train("resume", "a-1")
    assert said.code == 78
    assert "was submitted by hand" in said.err
    assert command in said.err
