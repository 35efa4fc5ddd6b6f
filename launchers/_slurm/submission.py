"""From a plan to a job: asked first whether it could ever start, then handed over once."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from pathlib import Path

from dist_train.errors import ConfigError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, Plan
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.records import write_bytes_atomic
from launchers._slurm.client import SUBMIT_TIMEOUT_S, Said, call, dropped_names, unreachable_error
from launchers._slurm.script import NAME

SUBMISSION = "submission.json"


def submission_record(spec: JobSpec) -> dict[str, object]:
    """What belongs to the script and does not stand in it: sbatch's argv, and the job's record."""
    return {"argv": _argv(spec.run_dir), "spec": spec.to_json()}


def _argv(run_dir: Path) -> list[str]:
    return ["sbatch", "--parsable", str(run_dir / "plan" / NAME)]


def submit(plan: Plan) -> JobHandle:
    """sbatch the plan's script; raises UnavailableError (69) with Slurm's own words when it refuses."""
    record = json.loads(plan.file(SUBMISSION))
    spec = JobSpec.from_json(record["spec"])
    run = RunDir(spec.run_dir)
    values = _secret_values(spec)
    _prepare(run)
    # --test-only also refuses what sbatch would let wait for ever (9 nodes of a 4-node partition).
    _not_refused(call(["sbatch", "--test-only", record["argv"][-1]], SUBMIT_TIMEOUT_S))
    _name_dropped()
    if values:
        write_bytes_atomic(run.secrets, json.dumps(values).encode())
    said = call(record["argv"], SUBMIT_TIMEOUT_S)
    if said.returncode != 0:
        run.secrets.unlink(missing_ok=True)
    _not_refused(said)
    handle = handle_of(said)
    append_event(run, "submitted", launcher="slurm", handle=handle.text, host=socket.gethostname())
    return handle


def _prepare(run: RunDir) -> None:
    """The run key (0600), and no order of an earlier job."""
    key = run.control / "key"
    if not key.exists():
        write_bytes_atomic(key, secrets.token_bytes(32))
    (run.control / "cancel").unlink(missing_ok=True)


def _secret_values(spec: JobSpec) -> dict[str, str]:
    missing = [name for name in spec.secrets if name not in os.environ]
    if missing:
        raise ConfigError(
            f"the run needs the secret {missing[0]}, and this shell's environment has no such variable",
            mend=f"export {missing[0]}=… first; its value is kept in no record",
        )
    return {name: os.environ[name] for name in spec.secrets}


def _not_refused(said: Said) -> None:
    if said.returncode != 0:
        raise refusal(said)


def refusal(said: Said) -> UnavailableError:
    """Why sbatch took no job."""
    if said.unreachable:
        return unreachable_error(said)
    return UnavailableError(
        f"Slurm refuses the job: {said.words}",
        mend="`sinfo -o '%P %l %D %c %m %G'` shows partitions: time limit, nodes, cores, memory, GPUs",
    )


def cancelled(job: str, said: Said) -> None:
    """Raises UnavailableError where scancel did not obey; a job that has ended already is as good."""
    if said.returncode == 0 or said.unknown_job or "already complet" in said.stderr:
        return
    if said.unreachable:
        raise unreachable_error(said)
    raise UnavailableError(f"Slurm does not cancel job {job}: {said.words}", mend=f"scontrol show job {job}")


def _name_dropped() -> None:
    names = dropped_names(os.environ)
    if names:
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        print(
            f"[dist-train] not handed to sbatch, they would change the job behind its script: {shown}",
            file=sys.stderr,
        )


def handle_of(said: Said) -> JobHandle:
    """`123`, or `123;cluster` where there are several, as sbatch --parsable prints it."""
    last = (said.stdout.strip().splitlines() or [""])[-1]
    job, _, cluster = last.partition(";")
    if not job.isdigit():
        raise UnavailableError(
            f"sbatch's answer {said.stdout.strip()!r} holds no job id",
            cause="sbatch may be a wrapper of this site",
            mend="`squeue --me` shows whether the job was taken",
        )
    return JobHandle(f"slurm:{job}" + (f"@{cluster}" if cluster else ""))
