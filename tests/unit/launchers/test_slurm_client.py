"""Slurm's commands: bounded, in a filtered environment, with errors of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_stand_ins import Commands

from dist_train.errors import UnavailableError
from launchers._slurm.slurm_client import (
    CommandResult,
    call,
    dropped_variables,
    submit_environ,
    unreachable_error,
)


def said(stderr: str, code: int = 1) -> CommandResult:
    return CommandResult("squeue", code, "", stderr)


def test_a_commands_output_is_returned(commands: Commands) -> None:
    commands.put("squeue", "printf '1|RUNNING'; printf 'warning\\n' >&2; exit 3")
    answer = call(["squeue", "-j", "1 2"])
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "1|RUNNING", "warning\n")
    assert commands.calls == ["squeue -j 1 2"]


def test_bytes_that_are_no_text_are_no_error(commands: Commands) -> None:
    commands.put("squeue", "printf '1|\\xff|'")
    assert call(["squeue"]).stdout == "1|�|"


def test_a_missing_command_is_69_with_a_hint(commands: Commands) -> None:
    with pytest.raises(UnavailableError, match="sbatch is not on this machine's PATH") as caught:
        call(["sbatch", "x"])
    assert "login node" in str(caught.value)
    assert caught.value.exit_code == 69


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller is pinged after 0.1 s without an answer, not after 2 s."""
    monkeypatch.setattr("launchers._slurm.slurm_client._BEFORE_PING_S", 0.1)


@pytest.mark.usefixtures("soon")
def test_a_command_that_does_not_answer_is_69(commands: Commands) -> None:
    commands.put("squeue", "exec /bin/sleep 30")
    with pytest.raises(UnavailableError, match="cannot be reached: squeue has no answer"):
        call(["squeue"], timeout_s=0.3)


def test_a_missing_slurm_conf_is_reported_at_once(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.put("squeue", "exit 0")
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    with pytest.raises(UnavailableError, match=r"SLURM_CONF=/nowhere/slurm\.conf: there is no such file"):
        call(["squeue"])
    assert commands.calls == []


DOWN, UP = "Slurmctld(primary) at a is DOWN\n", "Slurmctld(backup) at b is UP\n"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("argv", [["squeue"], ["sbatch", "--test-only", "x"], ["scancel", "12"]])
def test_a_controller_that_is_down_is_not_waited_for(commands: Commands, argv: list[str]) -> None:
    commands.put(argv[0], "exec /bin/sleep 30")
    commands.says("scontrol", DOWN)
    with pytest.raises(UnavailableError, match=f"{argv[0]} has no answer"):
        call(argv, timeout_s=20)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("argv", "ping"),
    [
        (["squeue"], DOWN + UP),
        (["squeue"], ""),
        (["squeue", "-M", "c1"], DOWN),
        (["sbatch", "--parsable", "x"], DOWN),  # it may have been taken
    ],
)
def test_a_slow_answer_is_waited_for(commands: Commands, argv: list[str], ping: str) -> None:
    commands.put(argv[0], "/bin/sleep 0.4; printf 12")
    commands.says("scontrol", ping)
    assert call(argv, timeout_s=20).stdout == "12"


def test_no_token_of_the_login_shell_reaches_slurm(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands.put("sbatch", "exec /usr/bin/env")
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("GITHUB_TOKEN", "canary-7c1")
    monkeypatch.setenv("WANDB_API_KEY", "canary-7c1")
    monkeypatch.setenv("MY_OWN", "canary-7c1")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    seen = call(["sbatch"]).stdout
    assert "canary-7c1" not in seen
    assert f"SLURM_CONF={tmp_path}/slurm.conf" in seen.splitlines()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("PATH", True),
        ("HOME", True),
        ("LD_LIBRARY_PATH", True),
        ("NCCL_DEBUG", True),
        ("LC_ALL", True),
        ("BASH_FUNC_module%%", True),
        ("SLURM_CONF", True),
        ("SLURM_JOB_ID", False),
        ("SLURM_GPUS_PER_NODE", False),
        ("SBATCH_PARTITION", False),
        ("SRUN_CPUS_PER_TASK", False),
        ("RANK", False),
        ("MASTER_ADDR", False),
        ("TORCHELASTIC_RUN_ID", False),
        ("DIST_TRAIN_RUN_DIR", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("AWS_SECRET_ACCESS_KEY", False),
        ("http_proxy", False),
    ],
)
def test_the_environment_of_sbatch(name: str, kept: bool) -> None:
    assert (name in submit_environ({name: "1"})) is kept


def test_only_what_would_have_changed_the_job_is_named() -> None:
    seen = {"SBATCH_QOS": "x", "SLURM_JOB_ID": "1", "RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    harmless = {"SLURM_CONF": "x", "GITHUB_TOKEN": "x", "PATH": "/bin", "EDITOR": "vi"}
    assert dropped_variables({**seen, **harmless}) == sorted(seen)


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "squeue: error: slurm_receive_msg: Zero Bytes were transmitted or received",
        "squeue: error: Unable to establish controller machine",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "scontrol: fatal: Could not establish a configuration source",
        "sbatch: error: If munged is up, restart with --num-threads=10\n"
        "sbatch: error: Munge encode failed: Failed to access '/run/munge/munge.socket.2'",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection: "
        "Connection refused",
        "slurm_load_jobs error: Communication connection failure",
        "squeue: error: Protocol authentication error",
    ],
)
def test_nobody_answered(text: str) -> None:
    assert said(text).unreachable
    assert not said(text).unknown_job
    assert not said(text, code=0).unreachable, "it did answer in the end"


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: invalid partition specified: nope",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Invalid account or partition",
        "slurm_load_jobs error: Invalid job id specified",
        "sbatch: error: Job submit limits exceeded: ask for fewer nodes",
    ],
)
def test_a_refusal_is_an_answer(text: str) -> None:
    assert not said(text).unreachable


def test_a_job_that_slurm_does_not_know() -> None:
    assert said("slurm_load_jobs error: Invalid job id specified").unknown_job
    assert not said("slurm_load_jobs error: Invalid job id specified", code=0).unknown_job


def test_slurms_message_without_the_commands_name() -> None:
    text = "sbatch: error: Please name an account (-A)\nsbatch: error: Batch job submission failed: No\n\n"
    assert said(text).message == "Please name an account (-A); Batch job submission failed: No"
    assert said("  \n", code=7).message == "exit code 7, and no message"


def test_an_unreachable_controller_is_reported_as_such() -> None:
    error = unreachable_error(said("squeue: error: Unable to contact slurm controller (connect failure)"))
    assert error.exit_code == 69
    assert error.what == (
        "Slurm's controller cannot be reached: Unable to contact slurm controller (connect failure)"
    )
