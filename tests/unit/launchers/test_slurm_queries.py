"""Queries of a job over Slurm's versions: an answer, a forgotten job, and no answer."""

from __future__ import annotations

import pytest
from slurm_stand_ins import Commands

from dist_train.jobs import JobHandle
from launchers._slurm.slurm_queries import (
    QueryAnswer,
    SlurmJob,
    exit_code_of,
    job_and_cluster,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    query_job,
)

JOB = JobHandle("slurm:12")
UNKNOWN = "slurm_load_jobs error: Invalid job id specified"
DEAD = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"

# The same job by scontrol -o of several versions; only the order and the company of the keys differ.
V21_08 = (
    "JobId=12 JobName=digits UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=4294901757 Nice=0 "
    "Account=(null) QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:01:00 TimeLimit=00:10:00 TimeMin=N/A "
    "SubmitTime=2026-01-02T03:04:00 EligibleTime=2026-01-02T03:04:00 StartTime=2026-01-02T03:04:05 "
    "Deadline=N/A SuspendTime=None Partition=main AllocNode:Sid=login:1 ReqNodeList=n[5-6] "
    "ExcNodeList=n9 NodeList=n[1-2] BatchHost=n1 NumNodes=2\n"
)
V22_05 = (
    "JobId=12 JobName=digits UserId=me(1000) Account=(null) QOS=(null) JobState=PENDING "
    "Reason=Resources Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "StartTime=2026-01-02T04:00:00 ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=2-2\n"
)
V23_11 = (
    "JobId=12 JobName=digits UserId=me(1000) JobState=PENDING "
    "Reason=launch_failed_requeued_held FailedNode=n1 Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 "
    "Reboot=0 ExitCode=0:0 StartTime=Unknown ReqNodeList=(null) ExcNodeList=(null) NodeList=(null)\n"
)
V25_05 = (
    "JobId=12 JobName=digits UserId=me(1000) GroupId=me(1000) MCS_label=N/A JobState=FAILED "
    "Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=1 BatchFlag=2 Reboot=0 ExitCode=41:0 "
    "DerivedExitCode=143:0 RunTime=00:00:09 StartTime=2026-01-02T03:04:05 PreemptEligibleTime=None "
    "LastSchedEval=2026-01-02T03:04:05 Scheduler=Backfill:* ReqNodeList=(null) ExcNodeList=(null) "
    "NodeList=n[1-2] StepMgrEnabled=Yes NumNodes=2 SubmitLine=sbatch_--parsable_job.sbatch Power= "
    "TresPerTask=cpu:4\n"
)


@pytest.mark.proves(
    "The output of Slurm 21.08 to 25.05 is read",
    limits="records written in those formats; only 22.05 was run",
)
@pytest.mark.parametrize(
    ("text", "state", "reason", "nodes", "restarts", "code"),
    [
        (V21_08, "RUNNING", "None", "n[1-2]", 2, "0:0"),
        (V22_05, "PENDING", "Resources", "", 0, "0:0"),
        (V23_11, "PENDING", "launch failed requeued held", "", 1, "0:0"),
        (V25_05, "FAILED", "NonZeroExitCode", "n[1-2]", 1, "41:0"),
    ],
)
def test_scontrol_over_the_versions(
    text: str, state: str, reason: str, nodes: str, restarts: int, code: str
) -> None:
    found = parse_scontrol(text)
    assert found is not None
    assert (found.source, found.state, found.reason) == ("scontrol", state, reason)
    assert (found.nodes, found.restarts, found.exit_code) == (nodes, restarts, code)


@pytest.mark.parametrize(
    "reason", ["launch failed requeued held", "ReqNodeNotAvail, UnavailableNodes:n[1-2]"]
)
def test_a_reason_with_blanks_in_it_is_read_whole(reason: str) -> None:
    for text in (V22_05.replace("Resources", reason), V22_05.replace("Resources", reason.replace(" ", "_"))):
        found = parse_scontrol(text)
        assert found is not None
        assert found.reason == reason


def test_scontrol_without_a_state_is_no_answer() -> None:
    assert parse_scontrol("") is None
    assert parse_scontrol("No jobs in the system\n") is None


def test_squeue_with_and_without_the_clusters_header() -> None:
    line = "12|PENDING|ReqNodeNotAvail, UnavailableNodes:n1|n2|N/A\n"
    found = SlurmJob("squeue", "PENDING", "ReqNodeNotAvail, UnavailableNodes:n1", "n2")
    assert parse_squeue(line, "12") == parse_squeue(f"CLUSTER: c1\n{line}", "12") == found


def test_squeue_names_another_job_or_none() -> None:
    assert parse_squeue("120|RUNNING|None|n1|N/A\n", "12") is None
    assert parse_squeue("CLUSTER: c1\n", "12") is None
    assert parse_squeue("", "12") is None


def test_a_new_estimate_of_the_start_is_no_change() -> None:
    one = parse_squeue("12|PENDING|Priority||2026-01-02T03:04:05\n", "12")
    two = parse_squeue("12|PENDING|Priority||2026-01-02T04:04:05\n", "12")
    assert one == two
    assert one is not None
    assert one.start == "2026-01-02T03:04:05"


def test_of_a_requeued_job_sacct_has_several_lines_and_the_last_counts() -> None:
    text = "12|PREEMPTED|0:0|n1\n12|NODE_FAIL|1:0|n[1-2]\n12|CANCELLED by 1000|0:15|n3\n13|FAILED|1:0|n1\n"
    assert parse_sacct(text, "12") == SlurmJob("sacct", "CANCELLED", nodes="n3", exit_code="0:15")
    assert parse_sacct("", "12") is None


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("CANCELLED+", "CANCELLED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("REQUEUE+", "REQUEUE+"),  # three states begin so: not guessed
        ("EXPEDITING", "EXPEDITING"),
    ],
)
def test_shortened_and_unknown_states(said: str, state: str) -> None:
    found = parse_sacct(f"12|{said}|0:125|n1\n", "12")
    assert found is not None
    assert found.state == state


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("41:0", 41),
        ("0:9", 137),
        ("0:15", 143),
        ("1:15", 1),
        ("0:0", 0),
        ("0:125", None),
        ("", None),
        (None, None),
        ("x", None),
    ],
)
def test_slurms_exit_code_as_a_shell_has_it(text: str | None, code: int | None) -> None:
    assert exit_code_of(text) == code


@pytest.mark.parametrize(("text", "found"), [("slurm:12", ("12", [])), ("slurm:12@c1", ("12", ["-M", "c1"]))])
def test_a_handle_names_job_and_cluster(text: str, found: tuple[str, list[str]]) -> None:
    assert job_and_cluster(JobHandle(text)) == found


@pytest.mark.parametrize(("handle", "where"), [("slurm:12", ""), ("slurm:12@c1", "-M c1 ")])
def test_every_query_goes_to_the_jobs_own_cluster(commands: Commands, handle: str, where: str) -> None:
    for name in ("squeue", "scontrol", "sacct"):
        commands.refuses(name, UNKNOWN)
    assert query_job(JobHandle(handle)) == QueryAnswer(None, forgotten=True)
    assert commands.calls == [
        f"squeue {where}-h -t all -j 12 -o %i|%T|%r|%N|%S",
        f"scontrol {where}show job -o 12",
        f"sacct {where}-X -n --parsable2 -o JobID,State,ExitCode,NodeList -j 12",
    ]


def test_a_running_job_costs_one_query(commands: Commands) -> None:
    commands.says("squeue", "12|RUNNING|None|n[1-2]|2026-01-02T03:04:05\n")
    assert query_job(JOB).job == SlurmJob("squeue", "RUNNING", "None", "n[1-2]")
    assert len(commands.calls) == 1


def test_for_a_pending_or_ended_job_scontrol_is_queried_too(commands: Commands) -> None:
    commands.says("squeue", "12|FAILED|NonZeroExitCode|n[1-2]|N/A\n")
    commands.says("scontrol", V25_05)
    answer = query_job(JOB)
    assert answer.job is not None
    assert (answer.job.source, answer.job.exit_code) == ("scontrol", "41:0")


@pytest.mark.parametrize("text", [DEAD, UNKNOWN, "scontrol: error: whatever"])
def test_without_scontrol_squeues_answer_is_used(commands: Commands, text: str) -> None:
    commands.says("squeue", "12|PENDING|Priority||N/A\n")
    commands.refuses("scontrol", text)
    assert query_job(JOB).job == SlurmJob("squeue", "PENDING", "Priority")


def test_after_min_job_age_sacct_knows(commands: Commands) -> None:
    commands.refuses("squeue", UNKNOWN)
    commands.refuses("scontrol", UNKNOWN)
    commands.says("sacct", "12|OUT_OF_MEMORY|0:125|n1\n")
    assert query_job(JOB).job == SlurmJob("sacct", "OUT_OF_MEMORY", nodes="n1", exit_code="0:125")


def test_some_versions_answer_an_unknown_job_with_nothing(commands: Commands) -> None:
    commands.says("squeue", "")
    commands.refuses("scontrol", UNKNOWN)
    commands.refuses("sacct", "sacct: error: Slurm accounting storage is disabled")
    assert query_job(JOB) == QueryAnswer(None, forgotten=True)


def test_no_answer_has_each_commands_error(commands: Commands) -> None:
    commands.refuses("squeue", DEAD)
    answer = query_job(JOB)
    assert (answer.job, answer.forgotten) == (None, False)
    assert len(commands.calls) == 1, "scontrol would ask the same daemon"
    assert answer.error == (
        "squeue: slurm_load_jobs error: Unable to contact slurm controller (connect failure); "
        "sacct is not on this machine's PATH"
    )


def test_an_empty_accounting_database_is_no_answer_for_a_dead_controller(commands: Commands) -> None:
    commands.refuses("squeue", DEAD)
    commands.says("sacct", "")
    answer = query_job(JOB)
    assert not answer.forgotten
    assert "sacct knows no such job" in answer.error
