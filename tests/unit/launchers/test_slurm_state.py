"""The state of a run from Slurm's answer and the run's own records."""

from __future__ import annotations

import pytest

from dist_train.jobs import JobHandle, JobState
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.records import write_json_atomic
from launchers._slurm.slurm_queries import QueryAnswer, SlurmJob
from launchers._slurm.slurm_reasons import explain_reason
from launchers._slurm.slurm_state import job_state, newest_verdict

JOB = JobHandle("slurm:12@c1")


def seen(run: RunDir, state: str, **more: object) -> JobState:
    return job_state(JOB, run, QueryAnswer(SlurmJob("scontrol", state, **more)))  # type: ignore[arg-type]


def verdict(run: RunDir, text: str, restart: int = 0, job: int = 12) -> None:
    (run.control / f"verdict-{job}.{restart}").write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", "pending"),
        ("CONFIGURING", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("SUSPENDED", "running"),
        ("COMPLETED", "done"),
        ("FAILED", "failed"),
        ("TIMEOUT", "failed"),
        ("NODE_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("CANCELLED", "stopped"),
        ("PREEMPTED", "stopped"),
    ],
)
def test_slurms_states_in_ours(run: RunDir, state: str, phase: str) -> None:
    found = seen(run, state)
    assert (found.phase, found.source) == (phase, "scontrol")


@pytest.mark.proves(
    "An unknown state of Slurm, or a query that failed, is `unknown` and never a failed job",
)
@pytest.mark.parametrize("state", ["REVOKED", "EXPEDITING", "REQUEUE+", ""])
def test_a_state_that_we_do_not_know_is_unknown_and_never_failed(run: RunDir, state: str) -> None:
    verdict(run, "1")
    found = seen(run, state, exit_code="1:0")
    assert (found.phase, found.exit_code) == ("unknown", None)
    assert repr(state) in found.detail


def test_a_running_job_has_its_nodes(run: RunDir) -> None:
    assert seen(run, "RUNNING", nodes="n[1-2]").detail == "on n[1-2]"
    assert (
        seen(run, "SUSPENDED", nodes="n1").detail == "suspended: it holds its nodes and does nothing; on n1"
    )


@pytest.mark.parametrize(
    ("reason", "words", "command"),
    [
        ("None", "being scheduled", None),
        ("(Priority)", "jobs of higher priority wait before it (Priority)", "squeue --start -j 12"),
        ("Resources", "waits for nodes to become free", "squeue --start -j 12"),
        ("BeginTime", "its earliest start is not reached yet", None),
        ("JobHeldUser", "held by its owner (JobHeldUser); it will not start", "scontrol release 12"),
        ("JobHeldAdmin", "held by an administrator: ask the site's support", "scontrol show job 12"),
        ("launch failed requeued held", "a node could not start it", "scontrol release 12"),
        ("user env retrieval failed requeued held", "a node could not start it", "scontrol release 12"),
        ("JobHoldMaxRequeue", "requeued as often as the site allows", "scontrol release 12"),
        ("PartitionNodeLimit", "asks for more nodes than the partition has", "scontrol show partition"),
        ("PartitionTimeLimit", "asks for more time than the partition allows", "scontrol show partition"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "UnavailableNodes:n[1-2]", "sinfo -R"),
        ("BadConstraints", "no node can ever fulfil what it asks for", "scontrol show job 12"),
        ("AssocGrpGRES", "a limit of the account (AssocGrpGRES)", "sacctmgr show assoc user=$USER"),
        ("QOSMaxJobsPerUserLimit", "a limit of the quality of service", "sacctmgr show qos"),
        ("SomethingNew", "SomethingNew", None),
    ],
)
def test_the_reason_of_a_pending_job_and_the_command_that_helps(
    run: RunDir, reason: str, words: str, command: str | None
) -> None:
    found = seen(run, "PENDING", reason=reason)
    assert words in found.detail
    assert found.next == (() if command is None else (command,))


@pytest.mark.parametrize("reason", ["Priority", "Resources", "BeginTime", "SomethingNew", "ReqNodeNotAvail"])
def test_a_reason_that_passes_is_not_called_stuck(reason: str) -> None:
    assert not explain_reason(reason).stuck


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "launch failed requeued held"])
def test_a_held_job_will_not_start_by_itself(run: RunDir, reason: str) -> None:
    assert seen(run, "PENDING", reason=reason).detail.endswith("it will not start by itself")


def test_a_job_that_is_pending_again_is_requeued(run: RunDir) -> None:
    assert seen(run, "PENDING", restarts=0).phase == "pending"
    assert seen(run, "PENDING", restarts=1).phase == "requeued"
    assert seen(run, "REQUEUED").phase == "requeued"


def test_a_verdict_shows_a_requeue_without_a_restart_count(run: RunDir) -> None:
    assert seen(run, "PENDING").phase == "pending"
    verdict(run, "75", job=11)
    assert seen(run, "PENDING").phase == "pending", "it is of another job"
    verdict(run, "75")
    assert seen(run, "PENDING").phase == "requeued"


@pytest.mark.parametrize(
    ("state", "slurm", "written", "phase", "code"),
    [
        # Slurm's code stands where no verdict was written.
        ("FAILED", "41:0", None, "failed", 41),
        ("FAILED", "0:9", None, "failed", 137),
        ("FAILED", "0:0", None, "failed", 69),
        ("NODE_FAIL", "0:0", None, "failed", 69),
        ("TIMEOUT", "0:0", None, "failed", 143),
        ("OUT_OF_MEMORY", "0:125", None, "failed", 137),
        # srun's code is that of a secondary failure; the verdict has the job's.
        ("FAILED", "143:0", "41", "failed", 41),
        ("FAILED", "143:0", "78 node n2 is blind", "failed", 78),
        ("FAILED", "76:0", "76", "failed", 76),
        ("FAILED", "77:0", "77", "stopped", 77),
        ("FAILED", "75:0", "75", "stopped", 75),
        ("FAILED", "79:0", "79", "failed", 69),
        ("COMPLETED", "0:0", "0", "done", 0),
        ("CANCELLED", "0:15", None, "stopped", 77),
        ("CANCELLED", "0:15", "75", "stopped", 77),
        # Slurm ended it after the verdict of an earlier start.
        ("OUT_OF_MEMORY", "0:125", "75", "failed", 137),
        ("TIMEOUT", "0:15", "75", "failed", 143),
    ],
)
def test_the_exit_code(
    run: RunDir, state: str, slurm: str, written: str | None, phase: str, code: int
) -> None:
    if written is not None:
        verdict(run, written)
    found = seen(run, state, exit_code=slurm)
    assert (found.phase, found.exit_code) == (phase, code)


@pytest.mark.parametrize(
    ("state", "written", "words"),
    [
        ("OUT_OF_MEMORY", None, "ask for more with --mem"),
        ("TIMEOUT", None, "its time limit ended it"),
        ("FAILED", "75", "not requeued"),
        ("FAILED", "79", "a node was lost, and the job was not requeued"),
        ("FAILED", "78 not shared by: n2", "not shared by: n2"),
    ],
)
def test_the_end_in_words(run: RunDir, state: str, written: str | None, words: str) -> None:
    if written is not None:
        verdict(run, written)
    assert words in seen(run, state, exit_code="1:0").detail


@pytest.mark.parametrize(("requested", "phase"), [({"stopped": True}, "stopped"), ({}, "failed")])
def test_a_script_that_sigterm_ended_is_stopped_where_that_was_asked_for(
    run: RunDir, requested: dict[str, bool], phase: str
) -> None:
    verdict(run, "143")
    append_event(run, "finished", 0, exit_code=143, why="nothing was saved", **requested)
    found = seen(run, "FAILED", exit_code="143:0")
    assert (found.phase, found.exit_code) == (phase, 143)
    assert (found.detail == "nothing was saved") == bool(requested)


def test_a_stop_says_what_the_run_has_recorded_of_it(run: RunDir) -> None:
    verdict(run, "75")
    append_event(run, "preempted", 0, why="stopped; no checkpoint was saved")
    assert seen(run, "FAILED", exit_code="75:0").detail == "stopped; no checkpoint was saved; not requeued"


def test_no_output_file_means_that_the_run_directory_is_not_there(run: RunDir) -> None:
    found = seen(run, "FAILED", exit_code="0:53", nodes="n7")
    assert (found.phase, found.exit_code) == ("failed", 78)
    assert "the run directory is not shared by n7" in found.detail
    verdict(run, "3")
    assert seen(run, "FAILED", exit_code="0:53").exit_code == 3, "it did begin"


@pytest.mark.parametrize("own", [66, 69, 75, 77, 79])
def test_a_ranks_own_66_to_79_is_not_ours(run: RunDir, own: int) -> None:
    write_failure(run, Failure(source="rank", cls="exit", rank=1, exit_code=own))
    verdict(run, "1")
    found = seen(run, "FAILED", exit_code="1:0")
    assert (found.phase, found.exit_code, found.detail) == ("failed", own, "")


def test_an_ordinary_1_stays_1(run: RunDir) -> None:
    verdict(run, "1")
    write_failure(run, Failure(source="dist-train", cls="dist_train", exit_code=78))
    assert seen(run, "FAILED", exit_code="1:0").exit_code == 1
    write_failure(run, Failure(source="rank", cls="exit", rank=1, exit_code=3))
    assert seen(run, "FAILED", exit_code="1:0").exit_code == 1


def test_the_failure_of_an_earlier_job_is_not_this_ones(run: RunDir) -> None:
    write_failure(run, Failure(source="rank", cls="exit", rank=1, exit_code=66))
    verdict(run, "1", job=11)
    assert seen(run, "FAILED", exit_code="1:0").exit_code == 1


def test_of_several_verdicts_that_of_the_newest_restart_counts(run: RunDir) -> None:
    assert newest_verdict(run, "12") is None
    for restart, text in ((2, "75"), (10, "41"), (9, "79")):
        verdict(run, text, restart)
    assert newest_verdict(run, "12") == 41


@pytest.mark.parametrize("torn", ["", "\n", "4x"])
def test_a_torn_verdict_is_none(run: RunDir, torn: str) -> None:
    verdict(run, "75", 0)
    verdict(run, torn, 1)
    assert newest_verdict(run, "12") == 75
    (run.control / "verdict-12.tmp").write_text("3\n")
    assert newest_verdict(run, "12") == 75


FORGOTTEN = QueryAnswer(None, forgotten=True)
SILENCE = QueryAnswer(None, error="squeue: Unable to contact slurm controller")


@pytest.mark.parametrize(
    ("events", "phase", "code"),
    [
        ([("submitted", {}), ("finished", {"exit_code": 0})], "done", 0),
        ([("submitted", {}), ("finished", {"exit_code": 41})], "failed", 41),
        ([("submitted", {}), ("preempted", {})], "stopped", 75),
    ],
)
def test_a_forgotten_jobs_state_is_by_the_runs_records(
    run: RunDir, events: list[tuple[str, dict[str, int]]], phase: str, code: int
) -> None:
    for kind, fields in events:
        append_event(run, kind, 0, **fields)  # type: ignore[arg-type]
    found = job_state(JOB, run, FORGOTTEN)
    assert (found.phase, found.exit_code) == (phase, code)
    assert "Slurm has forgotten the job" in found.detail


def test_a_forgotten_job_that_never_began_has_failed(run: RunDir) -> None:
    append_event(run, "submitted")
    found = job_state(JOB, run, FORGOTTEN)
    assert (found.phase, found.exit_code) == ("failed", None)
    assert "no agent of it ever began" in found.detail


@pytest.mark.proves(
    "An unknown state of Slurm, or a query that failed, is `unknown` and never a failed job",
)
@pytest.mark.parametrize("kind", ["submitted", "attempt_started", "preempted"])
def test_a_query_that_failed_is_unknown_and_never_failed(run: RunDir, kind: str) -> None:
    append_event(run, kind, 0)  # type: ignore[arg-type]
    found = job_state(JOB, run, SILENCE)
    assert (found.phase, found.exit_code) == ("unknown", None)
    assert "Unable to contact slurm controller" in found.detail


def test_without_slurm_the_runs_end_and_its_running_owner_are_known(run: RunDir) -> None:
    append_event(run, "finished", 0, exit_code=41)
    found = job_state(JOB, run, SILENCE)
    assert (found.phase, found.exit_code) == ("failed", 41)
    assert "Slurm did not answer" in found.detail
    write_json_atomic(run.lease, {"host": "elsewhere", "pid": 1})
    assert job_state(JOB, run, SILENCE).phase == "running"


KILL_LINES = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=6959634.0. Some of the step tasks have been OOM "
    "Killed.",
    "slurmstepd-ideafix03: error: Detected 1 oom_kill event in StepId=4833316.0. Some of the step tasks have "
    "been OOM Killed.",
    "[2026-03-28T14:27:13.072] error: Detected 1 oom_kill event in StepId=10483536.batch. Some of the step "
    "tasks have been OOM Killed.",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=25428400.batch. Some of your processes may "
    "have been killed by the cgroup out-of-memory handler.",
    "slurmstepd: error: Detected 1 oom-kill event(s) in step 1007.batch cgroup. Some of your processes may "
    "have been killed by the cgroup out-of-memory handler.",
    "srun: error: holy8a24101: task 0: Out Of Memory",
)


class TestOutOfMemory:
    """Lines that jobs of several sites have printed: the Slurm of the tests limits no memory."""

    def test_what_the_agent_found_gives_the_next_command(self, run: RunDir) -> None:
        failure = Failure("rank", "out_of_memory", exit_code=137, signal=9, memory_limit=3 << 30)
        write_failure(run, failure)
        verdict(run, "137 killed")
        found = seen(run, "FAILED", exit_code="137:0")
        assert (found.phase, found.exit_code) == ("failed", 137)
        assert found.next == (f"dist-train resume {run.path} --mem 6G",)

    @pytest.mark.parametrize("asked", ["4G", "4096", "4194304K"])
    def test_slurms_state_alone_asks_for_twice_of_mem(self, run: RunDir, asked: str) -> None:
        write_json_atomic(run.job, {"spec": {"resources": [["mem", asked]]}})
        found = seen(run, "OUT_OF_MEMORY", exit_code="0:125")
        assert (found.phase, found.exit_code) == ("failed", 137)
        assert "out of memory at the limit of a node: ask for more with --mem" in found.detail
        assert found.next == (f"dist-train resume {run.path} --mem 8G",)

    @pytest.mark.parametrize("line", KILL_LINES)
    def test_slurms_line_in_the_output_is_shown_where_the_state_says_nothing(
        self, run: RunDir, line: str
    ) -> None:
        (run.logs / "12_0_log.out").write_text(f"epoch 1\n{line}\nsrun: error: n1: task 0: Killed\n")
        assert seen(run, "FAILED", exit_code="9:0").detail.endswith(line)

    def test_a_users_own_words_are_not_slurms(self, run: RunDir) -> None:
        (run.logs / "12_0_log.out").write_text("my program: Detected 1 oom_kill event\n")
        found = seen(run, "FAILED", exit_code="9:0")
        assert ("oom_kill" in found.detail, found.next) == (False, ())

    def test_a_run_that_went_on_to_its_end_is_done(self, run: RunDir) -> None:
        verdict(run, "0")
        found = seen(run, "OUT_OF_MEMORY", exit_code="0:125")
        assert (found.phase, found.exit_code) == ("done", 0)

    def test_the_agents_code_stays(self, run: RunDir) -> None:
        verdict(run, "1")
        assert seen(run, "OUT_OF_MEMORY", exit_code="0:125").exit_code == 1
