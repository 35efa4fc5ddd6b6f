"""A run's JobState from Slurm's answer and the run's own records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dist_train.env import expand_hostlist
from dist_train.errors import ExitCode
from dist_train.jobs import JobHandle, JobState
from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from launchers._slurm.slurm_memory import kill_line, resume_with_more
from launchers._slurm.slurm_queries import QueryAnswer, SlurmJob, exit_code_of, job_and_cluster
from launchers._slurm.slurm_reasons import PHASES, explain_reason, explain_state

# Slurm's ExitCode where it could not open the job's output file (found with 22.05).
_NO_OUTPUT_FILE = "0:53"
# As the run's records say it: SIGTERM (143) ends a script on request, and may be a failure too.
_MAY_BE_STOPPED = (ExitCode.PREEMPTED, 143)
_OUR_CODES = range(66, 80)
_OUT_OF_MEMORY = "OUT_OF_MEMORY"


def job_state(handle: JobHandle, run: RunDir, answer: QueryAnswer) -> JobState:
    """Combine both; a query that failed is `unknown` unless the run's records have the end."""
    if answer.job is not None:
        return _from_slurm(handle, run, answer.job)
    own = lease_state(run)
    if not answer.forgotten:
        is_certain = own.phase == "running" or own.exit_code not in (None, ExitCode.PREEMPTED)
        if is_certain:
            return replace(own, detail=_join(own.detail, f"Slurm did not answer: {answer.error}"))
        return JobState("unknown", "squeue, scontrol, sacct", answer.error or "nobody answered")
    if own.phase == "pending":
        return JobState("failed", "squeue", "Slurm has forgotten the job, and no agent of it ever began")
    return replace(own, detail=_join(own.detail, "Slurm has forgotten the job"))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _from_slurm(handle: JobHandle, run: RunDir, found: SlurmJob) -> JobState:
    job, _ = job_and_cluster(handle)
    phase = PHASES.get(found.state)
    if phase is None:
        return JobState(
            "unknown", found.source, f"Slurm says {found.state!r}, a state that dist-train does not know"
        )
    if phase in ("pending", "requeued"):
        return _waiting(run, job, found, phase == "requeued")
    if phase == "running":
        text = "" if found.state == "RUNNING" else explain_state(found.state)
        return JobState("running", found.source, _join(text, f"on {found.nodes}" if found.nodes else ""))
    return _ended(run, job, found)


def _waiting(run: RunDir, job: str, found: SlurmJob, requeued: bool) -> JobState:
    reason = explain_reason(found.reason or "None")
    again = requeued or bool(found.restarts) or newest_verdict(run, job) is not None
    command = (reason.command.format(job=job),) if reason.command else ()
    detail = f"{reason.text}; it will not start by itself" if reason.stuck else reason.text
    return JobState("requeued" if again else "pending", found.source, detail, next=command)


def _ended(run: RunDir, job: str, found: SlurmJob) -> JobState:
    if found.exit_code == _NO_OUTPUT_FILE and newest_verdict(run, job) is None:
        where = expand_hostlist(found.nodes)[0] if found.nodes else "the first node"
        why = f"the run directory is not shared by {where}: Slurm could not open the job's output file there"
        return JobState("failed", found.source, why, int(ExitCode.CONFIG))
    code = _code(run, job, found)
    own = rank_exit_code(run, code) if code == newest_verdict(run, job) else code
    text = "" if found.state in ("FAILED", "COMPLETED") else explain_state(found.state)
    phase = PHASES[found.state]
    if phase == "failed" and code in (ExitCode.PREEMPTED, ExitCode.CANCELLED):
        phase = "stopped"
    if code in _MAY_BE_STOPPED and (ended := lease_state(run)).phase == "stopped" and ended.exit_code == code:
        phase, text = "stopped", _join(text, ended.detail)
    if code == ExitCode.PREEMPTED:
        text = _join(text, "not requeued")
    if code == ExitCode.UNAVAILABLE and not text:
        text = "a node was lost, and the job was not requeued"
    if found.state == _OUT_OF_MEMORY and code == 0:
        text = "a process was killed for memory (Slurm: OUT_OF_MEMORY), and the run went on to its end"
        return JobState("done", found.source, text, 0)
    state = JobState(phase, found.source, _join(text, _why(run, job)), own)
    return _with_memory(state, run, job, found.state) if phase == "failed" else state


def _with_memory(state: JobState, run: RunDir, job: str, slurms: str) -> JobState:
    """Add what Slurm says of a kill for memory; the agent has said it already where it outlived that."""
    failure = read_failure(run)
    said = failure is not None and failure.cls == "out_of_memory" and newest_verdict(run, job) is not None
    line = "" if said else kill_line(run, job)
    if not (said or line or slurms == _OUT_OF_MEMORY):
        return state
    command = resume_with_more(run)
    return replace(state, detail=_join(state.detail, line), next=(command,) if command else ())


def _code(run: RunDir, job: str, found: SlurmJob) -> int:
    """The verdict's code; Slurm's own where the job ended before the agent could write a verdict."""
    if found.state == "COMPLETED":
        return 0
    if found.state in ("CANCELLED", "PREEMPTED"):
        return int(ExitCode.CANCELLED if found.state == "CANCELLED" else ExitCode.PREEMPTED)
    verdict = newest_verdict(run, job)
    again = (None, ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
    if found.state == _OUT_OF_MEMORY and verdict not in again:
        return int(verdict or 0)
    if verdict is None or found.state in ("TIMEOUT", "NODE_FAIL", _OUT_OF_MEMORY, "BOOT_FAIL", "DEADLINE"):
        return exit_code_of(found.exit_code) or {_OUT_OF_MEMORY: 137, "TIMEOUT": 143}.get(found.state, 69)
    if verdict == ExitCode.ATTEMPT_LOST:
        return int(ExitCode.UNAVAILABLE)
    return verdict


def rank_exit_code(run: RunDir, verdict: int) -> int:
    """A rank's own exit code of 66 to 79, which Slurm got as 1 because these codes have meanings of ours."""
    failure = read_failure(run) if verdict == 1 else None
    if failure is not None and failure.source == "rank" and failure.exit_code in _OUR_CODES:
        return failure.exit_code
    return verdict


def newest_verdict(run: RunDir, job: str) -> int | None:
    """The code in `verdict-<job>.<restart>` of the newest restart."""
    path = verdict_file(run, job)
    return None if path is None else _read_verdict(path)[0]


def verdict_file(run: RunDir, job: str) -> Path | None:
    """The verdict of the newest restart that has one."""
    found = {}
    for path in run.control.glob(f"verdict-{job}.*"):
        restart = path.name.rpartition(".")[2]
        if restart.isdigit() and _read_verdict(path)[0] is not None:
            found[int(restart)] = path
    return found[max(found)] if found else None


def _why(run: RunDir, job: str) -> str:
    path = verdict_file(run, job)
    return "" if path is None else _read_verdict(path)[1]


def _read_verdict(path: Path) -> tuple[int | None, str]:
    """Parse `41`, or `78 the reason` as the batch script writes it."""
    try:
        code, _, why = path.read_text().strip().partition(" ")
        return int(code), why
    except (OSError, ValueError):
        return None, ""
