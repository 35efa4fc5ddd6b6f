"""Where a run is: Slurm's answer and the run's own records, put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dist_train.env import expand_hostlist
from dist_train.errors import ExitCode
from dist_train.jobs import JobHandle, JobState
from dist_train.jobs.owner import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from launchers._slurm.queries import Answer, Sighting, exit_code_of, job_and_cluster
from launchers._slurm.reasons import PHASES, reason_words, state_words

# Slurm's ExitCode where it could not open the job's output file (seen with 22.05).
_NO_OUTPUT_FILE = "0:53"
_OURS = range(66, 80)


def standing(handle: JobHandle, run: RunDir, answer: Answer) -> JobState:
    """One JobState; a query that failed is `unknown` unless the run's records settle it."""
    if answer.sighting is not None:
        return _seen(handle, run, answer.sighting)
    own = lease_state(run)
    if not answer.forgotten:
        settled = own.phase == "running" or own.exit_code not in (None, ExitCode.PREEMPTED)
        if settled:
            return replace(own, detail=_join(own.detail, f"Slurm did not answer: {answer.trouble}"))
        return JobState("unknown", "squeue, scontrol, sacct", answer.trouble or "nobody answered")
    if own.phase == "pending":
        return JobState("failed", "squeue", "Slurm has forgotten the job, and no agent of it ever began")
    return replace(own, detail=_join(own.detail, "Slurm has forgotten the job"))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _seen(handle: JobHandle, run: RunDir, seen: Sighting) -> JobState:
    job, _ = job_and_cluster(handle)
    phase = PHASES.get(seen.state)
    if phase is None:
        return JobState(
            "unknown", seen.source, f"Slurm says {seen.state!r}, a state that dist-train does not know"
        )
    if phase in ("pending", "requeued"):
        return _waiting(run, job, seen, phase == "requeued")
    if phase == "running":
        words = "" if seen.state == "RUNNING" else state_words(seen.state)
        return JobState("running", seen.source, _join(words, f"on {seen.nodes}" if seen.nodes else ""))
    return _ended(run, job, seen)


def _waiting(run: RunDir, job: str, seen: Sighting, requeued: bool) -> JobState:
    words = reason_words(seen.reason or "None")
    again = requeued or bool(seen.restarts) or newest_verdict(run, job) is not None
    command = (words.command.format(job=job),) if words.command else ()
    detail = f"{words.text}; it will not start by itself" if words.stuck else words.text
    return JobState("requeued" if again else "pending", seen.source, detail, next=command)


def _ended(run: RunDir, job: str, seen: Sighting) -> JobState:
    if seen.exit_code == _NO_OUTPUT_FILE and newest_verdict(run, job) is None:
        where = expand_hostlist(seen.nodes)[0] if seen.nodes else "the first node"
        why = f"the run directory is not shared by {where}: Slurm could not open the job's output file there"
        return JobState("failed", seen.source, why, int(ExitCode.CONFIG))
    code = _code(run, job, seen)
    own = ranks_own_code(run, code) if code == newest_verdict(run, job) else code
    words = "" if seen.state in ("FAILED", "COMPLETED") else state_words(seen.state)
    phase = PHASES[seen.state]
    if phase == "failed" and code in (ExitCode.PREEMPTED, ExitCode.CANCELLED):
        phase = "stopped"
    if code == ExitCode.PREEMPTED:
        words = _join(words, "saved, and not requeued")
    if code == ExitCode.UNAVAILABLE and not words:
        words = "a node was lost, and the job was not requeued"
    return JobState(phase, seen.source, _join(words, _why(run, job)), own)


def _code(run: RunDir, job: str, seen: Sighting) -> int:
    """The verdict is the truth; Slurm's own code stands where there was no time for one."""
    if seen.state == "COMPLETED":
        return 0
    if seen.state in ("CANCELLED", "PREEMPTED"):
        return int(ExitCode.CANCELLED if seen.state == "CANCELLED" else ExitCode.PREEMPTED)
    verdict = newest_verdict(run, job)
    if verdict is None or seen.state in ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"):
        return exit_code_of(seen.exit_code) or {"OUT_OF_MEMORY": 137, "TIMEOUT": 143}.get(seen.state, 69)
    if verdict == ExitCode.ATTEMPT_LOST:
        return int(ExitCode.UNAVAILABLE)
    return verdict


def ranks_own_code(run: RunDir, verdict: int) -> int:
    """A rank's own 66 to 79 was told to Slurm as 1, so that it means nothing of ours there."""
    failure = read_failure(run) if verdict == 1 else None
    if failure is not None and failure.source == "rank" and failure.exit_code in _OURS:
        return failure.exit_code
    return verdict


def newest_verdict(run: RunDir, job: str) -> int | None:
    """The code in `verdict-<job>.<restart>` of the newest restart."""
    path = verdict_file(run, job)
    return None if path is None else _words(path)[0]


def verdict_file(run: RunDir, job: str) -> Path | None:
    """The verdict of the newest restart that has one."""
    found = {}
    for path in run.control.glob(f"verdict-{job}.*"):
        restart = path.name.rpartition(".")[2]
        if restart.isdigit() and _words(path)[0] is not None:
            found[int(restart)] = path
    return found[max(found)] if found else None


def _why(run: RunDir, job: str) -> str:
    path = verdict_file(run, job)
    return "" if path is None else _words(path)[1]


def _words(path: Path) -> tuple[int | None, str]:
    """`41`, or `78 the reason` as the batch script writes it."""
    try:
        code, _, why = path.read_text().strip().partition(" ")
        return int(code), why
    except (OSError, ValueError):
        return None, ""
