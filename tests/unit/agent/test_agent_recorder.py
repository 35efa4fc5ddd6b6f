"""Agent 0's records: the verdict for the scheduler's script, the events, and whether secrets are kept."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.coordination.messages import Verdict
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.records import recorder as recorder_module
from dist_train.agent.records.recorder import RunRecorder
from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.step_names import step_name


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    made.secrets.write_text('{"WANDB_API_KEY": "x"}')
    return made


def recorder(
    run: RunDir, launcher: str = "slurm", kind: str = "config", max_restarts: int = 3
) -> RunRecorder:
    environ = {
        env.RUN_DIR: str(run.path),
        env.RUN_ID: "r",
        env.LAUNCHER: launcher,
        env.NNODES: "1",
        env.NPROC_PER_NODE: "2",
        env.NODE_RANK: "0",
        env.RDZV: f"file://{run.path}/control/rdzv",
        "SLURM_JOB_ID": "12",
    }
    settings = replace(read_settings([kind, "x"], environ), job="12.0", max_restarts=max_restarts)
    return RunRecorder(settings, platform_of(launcher))


def begun(run: RunDir, launcher: str = "slurm") -> RunRecorder:
    """A recorder whose attempt has begun."""
    made = recorder(run, launcher)
    made.begin_attempt([{"host": "h"}], {"torch": "2.13"})
    return made


def end(
    run: RunDir,
    code: int,
    failure: Failure | None = None,
    launcher: str = "slurm",
    action: Literal["exit", "restart"] = "exit",
) -> str:
    """The verdict file; "" where there is none."""
    recorder(run, launcher).ended(Verdict(action, code, "why"), failure)
    path = run.control / "verdict-12.0"
    return path.read_text() if path.exists() else ""


def own(code: int) -> Failure:
    return Failure(source="rank", cls="exit", rank=1, exit_code=code)


@pytest.mark.parametrize("code", range(66, 80))
def test_a_scheduler_gets_1_for_a_ranks_own_66_to_79(run: RunDir, code: int) -> None:
    assert end(run, code, own(code)) == "1\n"
    failure = read_failure(run)
    assert failure is not None
    assert (failure.source, failure.exit_code) == ("rank", code), "the record keeps it as it is"


def test_the_local_launcher_gets_the_ranks_own_code(run: RunDir) -> None:
    assert end(run, 75, own(75), launcher="local") == "75\n"


@pytest.mark.parametrize("code", [1, 3, 41, 65, 80, 137])
def test_other_codes_of_a_rank_stay(run: RunDir, code: int) -> None:
    assert end(run, code, own(code)) == f"{code}\n"


@pytest.mark.parametrize("code", [69, 74, 78, 79])
def test_our_own_codes_stay(run: RunDir, code: int) -> None:
    assert end(run, code, Failure(source="dist-train", cls="dist_train", exit_code=code)) == f"{code}\n"


@pytest.mark.parametrize(
    ("code", "kept"), [(75, True), (79, True), (0, False), (41, False), (76, False), (77, False), (78, False)]
)
def test_secrets_stay_as_long_as_the_job_may_start_again(run: RunDir, code: int, kept: bool) -> None:
    end(run, code)
    assert run.secrets.exists() is kept


def test_a_restart_keeps_them_and_writes_no_verdict(run: RunDir) -> None:
    assert end(run, 137, own(137), action="restart") == ""
    assert run.secrets.exists()
    assert [event["kind"] for event in read_events(run)] == ["restarted"]


def commit(run: RunDir, step: int) -> None:
    folder = run.checkpoints / f"step-{step:08}"
    folder.mkdir()
    (folder / "manifest.json").touch()


def test_the_third_stop_at_the_same_step_is_76(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    codes = []
    for _ in range(3):
        decision = recorder(run).decide_stop()
        codes.append(decision.exit_code)
        recorder(run).ended(Verdict("exit", decision.exit_code, decision.why), None)
    assert codes == [75, 75, 76]
    assert (run.control / "verdict-12.0").read_text() == "76\n"


def test_a_newer_step_or_a_new_submission_resets_the_count(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    for attempt in (0, 1):
        append_event(run, "preempted", attempt, step=7)
    commit(run, 14)
    assert recorder(run).decide_stop().exit_code == 75
    append_event(run, "preempted", 2, step=14)
    append_event(run, "preempted", 3, step=14)
    assert recorder(run).decide_stop().exit_code == 76
    append_event(run, "submitted")
    assert recorder(run).decide_stop().exit_code == 75


def test_crashes_and_stops_count_together(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    append_event(run, "preempted", 0, step=7)
    append_event(run, "restarted", 1, committed=7)
    assert recorder(run).decide_stop().exit_code == 76


def test_a_script_without_checkpoints_is_never_stuck(run: RunDir) -> None:
    for attempt in range(4):
        append_event(run, "preempted", attempt, step=None)
    assert recorder(run, kind="script").decide_stop().exit_code == 75


def test_pods_that_are_stopped_while_they_gather_use_up_no_attempt(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    for _ in range(4):
        waiting = recorder(run, "kubernetes")
        decision = waiting.decide_stop()
        assert (decision.exit_code, decision.why) == (75, "stopped before an attempt had begun")
        waiting.ended(Verdict("exit", decision.exit_code, decision.why), None)
    assert [event["kind"] for event in read_events(run)] == ["submitted"]


def test_pods_that_are_stopped_at_work_count_across_their_generations(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    codes = []
    for _ in range(3):
        pod = begun(run, "kubernetes")
        decision = pod.decide_stop()
        codes.append(decision.exit_code)
        pod.ended(Verdict("exit", decision.exit_code, decision.why), None)
    assert codes == [75, 75, 76]


def test_a_killed_pod_0_is_a_restart_for_the_next_one(run: RunDir) -> None:
    append_event(run, "submitted")
    begun(run, "kubernetes")  # and no end was written
    begun(run, "kubernetes")
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["submitted", "attempt_started", "restarted", "attempt_started"]


LOST = Failure(source="dist-train", cls="node_lost", node_rank=1, exit_code=79)


def lose_a_node(start: RunRecorder) -> int:
    """A start that loses a node, as node 0's coordinator records it."""
    start.first_failure(LOST)
    decision = start.decide(LOST, stopping=False)
    start.ended(Verdict("exit", decision.exit_code, decision.why), LOST)
    return decision.exit_code


def test_losses_before_an_attempt_begins_use_up_the_restarts(run: RunDir) -> None:
    append_event(run, "submitted")
    assert [lose_a_node(recorder(run, max_restarts=2)) for _ in range(3)] == [79, 79, 69]
    assert [event["kind"] for event in read_events(run) if event["kind"] != "first_failure"] == [
        *("submitted", "restarted", "restarted", "finished")
    ]


def test_losses_before_and_after_the_beginning_of_an_attempt_count_together(run: RunDir) -> None:
    append_event(run, "submitted")
    attempt = recorder(run, max_restarts=2)
    attempt.begin_attempt([{"host": "h"}], {"torch": "2.13"})
    assert lose_a_node(attempt) == 79
    assert [lose_a_node(recorder(run, max_restarts=2)) for _ in range(2)] == [79, 69]


def test_losses_before_an_attempt_begins_are_no_attempts_without_progress(run: RunDir) -> None:
    append_event(run, "submitted")
    commit(run, 7)
    assert [lose_a_node(recorder(run, max_restarts=9)) for _ in range(5)] == [79] * 5


def test_a_cluster_that_replaces_nodes_counts_the_lost_pod_itself(run: RunDir) -> None:
    append_event(run, "submitted")
    attempt = recorder(run, "kubernetes", max_restarts=0)
    attempt.begin_attempt([{"host": "h"}], {"torch": "2.13"})
    assert lose_a_node(attempt) == 79


@pytest.mark.parametrize(("ended_by", "restarts"), [("restarted", 1), ("preempted", 0)])
def test_a_commit_that_is_seen_after_an_attempts_end_is_no_lost_attempt(
    run: RunDir, ended_by: Literal["restarted", "preempted"], restarts: int
) -> None:
    # Commits are found by polling (0.25 s), so that the event can come after the end of its attempt.
    append_event(run, "submitted")
    begun(run)
    append_event(run, ended_by, 0)
    append_event(run, "checkpoint_committed", 0, step=7)
    begun(run)
    assert len(list(read_events(run, "restarted"))) == restarts


def test_hints_of_a_pod_name_the_run_as_it_is_known_outside(run: RunDir) -> None:
    end(run, 41, own(41), launcher="kubernetes")
    failure = read_failure(run)
    assert failure is not None
    assert failure.next == ("dist-train logs run --rank 1", "dist-train resume run")


@pytest.mark.parametrize(
    ("launcher", "more"), [("slurm", " --mem 6G"), ("kubernetes", " --mem 6G"), ("local", "")]
)
def test_a_run_out_of_memory_is_to_be_resumed_with_twice_the_limit(
    run: RunDir, launcher: str, more: str
) -> None:
    killed = Failure("rank", "out_of_memory", rank=1, exit_code=137, signal=9, memory_limit=3 << 30)
    end(run, 137, killed, launcher=launcher)
    failure = read_failure(run)
    assert failure is not None
    name = "run" if launcher == "kubernetes" else str(run.path)
    assert failure.next[1] == f"dist-train resume {name}{more}"


def test_a_run_that_ctrl_c_stopped_says_130_as_its_launch_did(run: RunDir) -> None:
    made = begun(run)
    run.interrupted("12.0").touch()
    made.ended(Verdict("exit", 75, "saved and stopped"), None)
    assert [event["exit_code"] for event in read_events(run, "preempted")] == [130]


def test_the_watch_for_checkpoints_survives_a_file_system_that_fails_for_a_moment(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No descriptor left (EMFILE), a stale handle of NFS (ESTALE): the next look finds what was committed."""
    failing = threading.Event()
    looks: list[bool] = []
    real = recorder_module.committed_steps

    def committed_steps(of: RunDir) -> list[int]:
        looks.append(failing.is_set())
        if failing.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return real(of)

    monkeypatch.setattr(recorder_module, "committed_steps", committed_steps)
    monkeypatch.setattr(recorder_module, "_POLL_S", 0.01)
    watching = recorder(run)
    watching.start()
    try:
        failing.set()
        wait_until(lambda: looks.count(True) >= 2)
        for step in (10, 20):
            (run.checkpoints / step_name(step)).mkdir(parents=True)
            (run.checkpoints / step_name(step) / "manifest.json").write_text("{}")
        failing.clear()
        wait_until(lambda: len(list(read_events(run, "checkpoint_committed"))) >= 2)
    finally:
        watching.close()
    assert [event["step"] for event in read_events(run, "checkpoint_committed")] == [10, 20]
    said = [record for record in caplog.records if "tried again" in record.message]
    assert len(said) == 1, "once, not at each look"


def wait_until(ready: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stopped(run: RunDir) -> str:
    made = begun(run)
    decision = made.decide_stop()
    made.ended(Verdict("exit", decision.exit_code, decision.why), None)
    return str([*read_events(run, "preempted")][-1]["why"])


def test_a_stop_says_what_was_saved(run: RunDir) -> None:
    assert stopped(run) == "stopped; no checkpoint was saved"
    commit(run, 7)
    assert stopped(run) == "stopped; the newest checkpoint is of step 7"


def test_a_stop_says_at_which_step_where_the_trainer_has_recorded_it(run: RunDir) -> None:
    text = "stopped at step 57 as asked, and saved"
    record = {"exception": "Preempted", "text": f"{text}\n  hint:  run it again"}
    made = begun(run)
    (run.attempts / "0" / "error-rank-0.json").write_text(json.dumps(record))
    assert made.decide_stop().why == text


def test_a_stop_before_the_first_attempt_saved_nothing(run: RunDir) -> None:
    assert recorder(run).decide_stop().why == "stopped before an attempt had begun"


@pytest.mark.parametrize("code", [77, 130, 143])
def test_the_end_of_a_script_that_was_stopped_on_request_is_a_stop(run: RunDir, code: int) -> None:
    begun(run).ended(Verdict("exit", code, "stopped; the script …"), None)
    assert [event["stopped"] for event in read_events(run, "finished")] == [True]
    assert lease_state(run).phase == "stopped"
    assert lease_state(run).detail == "stopped; the script …; no checkpoint was saved"


def test_a_rank_that_a_signal_of_somebody_else_ended_has_failed(run: RunDir) -> None:
    end(run, 143, own(143))
    assert lease_state(run).phase == "failed"
