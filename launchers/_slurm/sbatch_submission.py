"""Submit a plan with sbatch, after `sbatch --test-only` has accepted it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from dist_train.errors import ConfigError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, Plan
from dist_train.jobs.launcher import SubmissionUnknown, SubmittedMeanwhile
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.records import write_bytes_atomic
from launchers._slurm.batch_script import NAME
from launchers._slurm.slurm_client import (
    SUBMIT_TIMEOUT_S,
    CommandResult,
    NoAnswer,
    call,
    dropped_variables,
    unreachable_error,
)
from launchers._slurm.uninterrupted import Uninterrupted

SUBMISSION = "submission.json"
_KEEP_SIGNAL = '--sbatch-arg signal="$SBATCH_SIGNAL"'


def submission_record(spec: JobSpec) -> dict[str, object]:
    """Data beside the script: sbatch's argv, and the job's record."""
    return {"argv": _argv(spec.run_dir), "spec": spec.to_json()}


def _argv(run_dir: Path) -> list[str]:
    return ["sbatch", "--parsable", str(run_dir / "plan" / NAME)]


def submit(plan: Plan) -> JobHandle:
    """Submit the plan's script; raise UnavailableError (69) with Slurm's message if it is refused."""
    record = json.loads(plan.file(SUBMISSION))
    spec = JobSpec.from_json(record["spec"])
    run = RunDir(spec.run_dir)
    values = _secret_values(spec)
    _prepare(run)
    # --test-only also refuses jobs that sbatch would leave pending for ever (9 nodes of a 4-node partition).
    _check_accepted(call(["sbatch", "--test-only", record["argv"][-1]], SUBMIT_TIMEOUT_S))
    if values:
        write_bytes_atomic(run.secrets, json.dumps(values).encode())
    with Uninterrupted(_say_that_it_waits) as interrupt:
        result = _answer(record["argv"], spec)
        if result.without_answer:
            raise _unknown(f"Slurm's controller has not answered: {result.message}", spec)
        if result.returncode != 0:
            run.secrets.unlink(missing_ok=True)
        _check_accepted(result)
        handle = handle_of(result, spec)
        append_event(run, "submitted", launcher="slurm", handle=handle.text, host=socket.gethostname())
        if interrupt.asked:
            raise SubmittedMeanwhile(handle)
    return handle


def _say_that_it_waits() -> None:
    print(
        "\n[dist-train] Ctrl-C: waiting for sbatch's answer, since the job may be taken already; "
        "once more gives up",
        file=sys.stderr,
    )


def _answer(argv: list[str], spec: JobSpec) -> CommandResult:
    try:
        return call(argv, SUBMIT_TIMEOUT_S, own_session=True)
    except KeyboardInterrupt:
        raise _unknown("interrupted before sbatch had answered", spec) from None
    except NoAnswer as error:
        raise _unknown(error.what, spec) from error


def _unknown(what: str, spec: JobSpec) -> SubmissionUnknown:
    return SubmissionUnknown(
        what,
        cause="whether Slurm has taken the job is unknown, so its run directory stays: " + str(spec.run_dir),
        hint=f"`squeue --me --name {spec.name}` shows whether it was taken; if not, remove the directory",
    )


def _prepare(run: RunDir) -> None:
    """Write the run key (0600), and remove the cancel request of an earlier job."""
    key = run.control / "key"
    if not key.exists():
        write_bytes_atomic(key, secrets.token_bytes(32))
    run.cancel_request.unlink(missing_ok=True)


def _secret_values(spec: JobSpec) -> dict[str, str]:
    missing = [name for name in spec.secrets if name not in os.environ]
    if missing:
        raise ConfigError(
            f"the run needs the secret {missing[0]}, and this shell's environment has no such variable",
            hint=f"export {missing[0]}=… first; its value is kept in no record",
        )
    return {name: os.environ[name] for name in spec.secrets}


def _check_accepted(result: CommandResult) -> None:
    if result.returncode != 0:
        raise refusal(result)


def refusal(result: CommandResult) -> UnavailableError:
    """The error for a job that sbatch did not accept."""
    if result.unreachable:
        return unreachable_error(result)
    return UnavailableError(
        f"Slurm refuses the job: {result.message}",
        hint="`sinfo -o '%P %l %D %c %m %G'` shows partitions: time limit, nodes, cores, memory, GPUs",
    )


def check_cancelled(job: str, result: CommandResult) -> None:
    """Raise UnavailableError if scancel failed; a job that has ended already is no failure."""
    if result.returncode == 0 or result.unknown_job or "already complet" in result.stderr:
        return
    if result.unreachable:
        raise unreachable_error(result)
    raise UnavailableError(
        f"Slurm does not cancel job {job}: {result.message}", hint=f"scontrol show job {job}"
    )


def dropped_notices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Name the variables of sbatch that it does not get."""
    names = dropped_variables(environ)
    if not names:
        return ()
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    keep = f"; keep the signal by {_KEEP_SIGNAL}" if "SBATCH_SIGNAL" in names else ""
    return (f"not handed to sbatch, they would change the job behind its script: {shown}{keep}",)


def handle_of(result: CommandResult, spec: JobSpec) -> JobHandle:
    """The handle of `123`, or of `123;cluster` at a multi-cluster site, as sbatch --parsable prints it."""
    last = (result.stdout.strip().splitlines() or [""])[-1]
    job, _, cluster = last.partition(";")
    if not job.isdigit():
        raise _unknown(f"sbatch's answer {result.stdout.strip()!r} holds no job id", spec)
    return JobHandle(f"slurm:{job}" + (f"@{cluster}" if cluster else ""))
