"""Submitting and cancelling a job: the calls of sbatch, its environment, the files left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slurm_stand_ins import Commands, Job

from dist_train.errors import ConfigError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, Plan
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from launchers._slurm.sbatch_submission import check_cancelled, dropped_notices, handle_of, refusal
from launchers._slurm.slurm_client import CommandResult
from launchers.slurm import SlurmLauncher

DEAD = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"


def planned(spec: JobSpec, **options: object) -> Plan:
    """A plan, and its files where `launch` writes them."""
    launcher = SlurmLauncher()
    plan = launcher.plan(spec, launcher.Options(**options))  # type: ignore[arg-type]
    folder = RunDir(spec.run_dir).plan
    folder.mkdir()
    for name, content in (*plan.files, *plan.aside):
        (folder / name).write_bytes(content)
    return plan


@pytest.fixture
def accepting(commands: Commands) -> Commands:
    commands.put("sbatch", '[ "$1" = --test-only ] || echo 12')
    return commands


def test_sbatch_tests_the_job_first(run: RunDir, job: Job, accepting: Commands) -> None:
    handle = SlurmLauncher().submit(planned(job()))
    assert handle == JobHandle("slurm:12")
    script = f"{run.path}/plan/job.sbatch"
    assert accepting.calls == [f"sbatch --test-only {script}", f"sbatch --parsable {script}"]
    [event] = read_events(run)
    assert (event["kind"], event["handle"]) == ("submitted", "slurm:12")


def test_the_plan_holds_the_script_alone_and_the_record_beside_it(run: RunDir, job: Job) -> None:
    plan = planned(job(config_yaml="a: 1\n", device="cuda"), partition="gpu")
    assert [name for name, _ in plan.files] == ["job.sbatch"]
    assert plan.summary == "1 node(s) x 2 GPU processes on Slurm in partition gpu"
    record = json.loads(plan.file("submission.json"))
    assert record["argv"] == ["sbatch", "--parsable", f"{run.path}/plan/job.sbatch"]
    assert JobSpec.from_json(record["spec"]) == job(device="cuda")


def test_the_run_key_is_private_and_kept(run: RunDir, job: Job, accepting: Commands) -> None:
    plan = planned(job())
    SlurmLauncher().submit(plan)
    key = run.control / "key"
    before = key.read_bytes()
    assert (len(before), key.stat().st_mode & 0o777) == (32, 0o600)
    (run.control / "cancel").write_text("cancel\n")
    SlurmLauncher().submit(plan)
    assert key.read_bytes() == before
    assert not (run.control / "cancel").exists(), "an order for an earlier job"


def test_a_secrets_value_is_in_one_private_file(
    run: RunDir, job: Job, accepting: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-7c1")
    SlurmLauncher().submit(planned(job(secrets=("WANDB_API_KEY",))))
    assert run.secrets.stat().st_mode & 0o777 == 0o600
    holding = [path for path in run.path.rglob("*") if path.is_file() and b"canary-7c1" in path.read_bytes()]
    assert holding == [run.secrets]


def test_a_secret_that_is_not_there_is_found_before_sbatch(
    run: RunDir, job: Job, accepting: Commands
) -> None:
    with pytest.raises(ConfigError, match="needs the secret WANDB_API_KEY"):
        SlurmLauncher().submit(planned(job(secrets=("WANDB_API_KEY",))))
    assert accepting.calls == []


NOT_AVAILABLE = "allocation failure: Requested node configuration is not available"


@pytest.mark.parametrize("asking", ["--test-only", "--parsable"])
def test_a_refusal_is_69_with_slurms_message_and_leaves_no_secret(
    run: RunDir, job: Job, commands: Commands, monkeypatch: pytest.MonkeyPatch, asking: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-7c1")
    commands.put("sbatch", f'[ "$1" = {asking} ] && {{ echo "{NOT_AVAILABLE}" >&2; exit 1; }}; echo 12')
    with pytest.raises(UnavailableError, match=f"Slurm refuses the job: {NOT_AVAILABLE}") as caught:
        SlurmLauncher().submit(planned(job(secrets=("WANDB_API_KEY",))))
    assert "sinfo" in str(caught.value)
    assert not run.secrets.exists()
    assert list(read_events(run)) == []
    assert len(commands.calls) == (1 if asking == "--test-only" else 2)


def test_a_dead_controller_is_no_refusal() -> None:
    error = refusal(CommandResult("sbatch", 1, "", DEAD))
    assert error.what.startswith("Slurm's controller cannot be reached")


def test_without_sbatch_nothing_secret_is_written(
    run: RunDir, job: Job, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-7c1")
    with pytest.raises(UnavailableError, match="sbatch is not on this machine's PATH"):
        SlurmLauncher().submit(planned(job(secrets=("WANDB_API_KEY",))))
    assert not run.secrets.exists()


def test_dropped_variables_are_named(job: Job) -> None:
    environ = {"GITHUB_TOKEN": "canary-7c1", "SBATCH_PARTITION": "x", "RANK": "0"}
    assert dropped_notices(environ) == (
        "not handed to sbatch, they would change the job behind its script: RANK, SBATCH_PARTITION",
    )


def test_dropped_variables_are_named_by_a_dry_run_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_SIGNAL", "INT@30")
    assert any("SBATCH_SIGNAL; keep the signal by" in line for line in SlurmLauncher().notices(job()))


def test_of_many_names_eight_are_shown() -> None:
    [line] = dropped_notices({f"SLURM_X{number:02}": "1" for number in range(11)})
    assert line.endswith("SLURM_X06, SLURM_X07 and 3 more")


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ("12\n", "slurm:12"),
        ("12;c1\n", "slurm:12@c1"),
        ("Welcome!\nYour quota: 3 %\n12;c1\n\n", "slurm:12@c1"),
    ],
)
def test_the_handle_is_the_job_and_its_cluster(job: Job, out: str, text: str) -> None:
    assert handle_of(CommandResult("sbatch", 0, out, ""), job()) == JobHandle(text)
    assert SlurmLauncher().detach_output(JobHandle(text)) == "12"


@pytest.mark.parametrize("out", ["", "Submitted batch job 12\n", "12a\n", "\n"])
def test_an_answer_without_a_job_id_is_69(job: Job, out: str) -> None:
    with pytest.raises(UnavailableError, match="holds no job id") as caught:
        handle_of(CommandResult("sbatch", 0, out, ""), job())
    assert "squeue --me" in str(caught.value)


class Submitted:
    """A job whose state in squeue is the test's."""

    def __init__(self, run: RunDir, job: Job, commands: Commands) -> None:
        planned(job())
        append_event(run, "submitted")
        self.run, self.commands = run, commands
        commands.put("scancel", "exit 0")

    def stands(self, state: str, code: str = "0:0") -> None:
        self.commands.says("squeue", f"12|{state}|None|n1|N/A\n")
        self.commands.says("scontrol", f"JobState={state} Reason=None Restarts=0 ExitCode={code} NodeList=n1")

    def cancel(self, handle: str = "slurm:12") -> list[str]:
        """What scancel was called with."""
        SlurmLauncher().cancel(JobHandle(handle), str(self.run.path))
        return [call for call in self.commands.calls if call.startswith("scancel")]


@pytest.fixture
def submitted(run: RunDir, job: Job, commands: Commands) -> Submitted:
    return Submitted(run, job, commands)


def test_a_pending_job_is_scancelled_and_its_secrets_are_removed(submitted: Submitted) -> None:
    submitted.stands("PENDING")
    submitted.run.secrets.write_text("{}")
    assert submitted.cancel() == ["scancel 12"]
    assert not submitted.run.secrets.exists()


def test_a_running_job_is_asked_to_save_first(submitted: Submitted) -> None:
    submitted.stands("RUNNING")
    assert submitted.cancel() == []
    assert (submitted.run.control / "cancel").exists()
    assert submitted.cancel() == [], "again changes nothing"


def test_a_job_that_does_not_stop_within_its_grace_is_scancelled(submitted: Submitted) -> None:
    import os
    import time

    submitted.stands("RUNNING")
    submitted.cancel()
    for age, called in ((38.0, []), (41.0, ["scancel 12"])):
        then = time.time() - age
        os.utime(submitted.run.control / "cancel", (then, then))
        assert submitted.cancel() == called, "grace 30 s and 10 s more"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"])
def test_one_that_has_ended_is_left_alone(submitted: Submitted, state: str) -> None:
    submitted.stands(state, "1:0")
    assert submitted.cancel() == []
    assert not (submitted.run.control / "cancel").exists()


def test_scancel_goes_to_the_jobs_own_cluster(submitted: Submitted) -> None:
    submitted.stands("PENDING")
    assert submitted.cancel("slurm:12@c1") == ["scancel -M c1 12"]


def test_a_failed_scancel_is_69(submitted: Submitted) -> None:
    submitted.stands("PENDING")
    submitted.commands.refuses(
        "scancel", "scancel: error: Kill job error on job id 12: Access/permission denied"
    )
    with pytest.raises(UnavailableError, match=r"Slurm does not cancel job 12: Kill job error.*denied"):
        submitted.cancel()


@pytest.mark.parametrize(
    "text",
    [
        "scancel: error: Kill job error on job id 12: Invalid job id specified",
        "scancel: error: Kill job error on job id 12: Job/step already completing or completed",
    ],
)
def test_a_job_that_ended_meanwhile_counts_as_cancelled(text: str) -> None:
    check_cancelled("12", CommandResult("scancel", 1, "", text))


def test_nothing_is_cancelled_if_the_state_is_unknown(submitted: Submitted) -> None:
    submitted.commands.refuses("squeue", DEAD)
    with pytest.raises(UnavailableError, match="Slurm does not say where job 12 is") as caught:
        submitted.cancel()
    assert "Unable to contact slurm controller" in str(caught.value)


def test_wait_follows_to_the_end_with_the_jobs_code(
    submitted: Submitted, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launchers.slurm._TICK_S", 0.01)
    submitted.stands("FAILED", "143:0")
    (submitted.run.control / "verdict-12.0").write_text("41\n")
    (submitted.run.logs / "12_0_log.out").write_text("epoch 1\n")
    assert SlurmLauncher().wait(JobHandle("slurm:12"), str(submitted.run.path)) == 41
    out, err = capfdbinary.readouterr()
    assert out == b"epoch 1\n"
    assert err == b"[dist-train] job 12 is failed\n"


@pytest.mark.parametrize(
    ("verdict", "failure", "code"),
    [("41", None, 41), ("1", {"source": "rank", "class": "exit", "exit_code": 77}, 77)],
)
def test_a_final_verdict_counts_though_slurm_reports_no_end(
    submitted: Submitted, monkeypatch: pytest.MonkeyPatch, verdict: str, failure: Any, code: int
) -> None:
    monkeypatch.setattr("launchers.slurm._TICK_S", 0.01)
    monkeypatch.setattr("launchers.slurm._VERDICT_GRACE_S", 0.1)
    submitted.stands("COMPLETING")
    (submitted.run.control / "verdict-12.0").write_text(f"{verdict}\n")
    if failure:
        submitted.run.failure.write_text(json.dumps(failure))
    assert SlurmLauncher().wait(JobHandle("slurm:12"), str(submitted.run.path)) == code


def test_a_verdict_of_an_earlier_start_is_not_the_end(
    submitted: Submitted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from launchers.slurm import _JobFollower

    monkeypatch.setattr("launchers.slurm._VERDICT_GRACE_S", -1.0)
    follower = _JobFollower(SlurmLauncher(), JobHandle("slurm:12"), submitted.run)
    (submitted.run.control / "verdict-12.0").write_text("41\n")
    assert follower._overdue_verdict() == 41
    (submitted.run.control / "rdzv-12.1").write_text("n1:1\n")
    assert follower._overdue_verdict() is None, "it has begun again"
    for again in ("75", "79"):
        (submitted.run.control / "verdict-12.1").write_text(f"{again}\n")
        assert follower._overdue_verdict() is None, "it will begin again"
