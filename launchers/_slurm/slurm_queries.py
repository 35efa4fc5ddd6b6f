"""Query a job's state by squeue, then scontrol, then sacct; their text formats are stable over versions.

An answer, "Slurm has no such job", and "nobody answered" are three different results; the last one never
means that the job has failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from dist_train.errors import UnavailableError
from dist_train.jobs import JobHandle
from launchers._slurm.slurm_client import CommandResult, call

_SQUEUE = "%i|%T|%r|%N|%S"


@dataclass(frozen=True)
class SlurmJob:
    """A job as one command of Slurm reports it. `exit_code` is Slurm's `code:signal`."""

    source: str
    state: str
    reason: str = ""
    nodes: str = ""
    # An estimate while the job is pending: a new estimate is no change.
    start: str = field(default="", compare=False)
    restarts: int | None = None
    exit_code: str | None = None


@dataclass(frozen=True)
class QueryAnswer:
    """The job; or None: Slurm has removed it (`forgotten`), or nobody answered (`error`)."""

    job: SlurmJob | None
    forgotten: bool = False
    error: str = ""


def job_and_cluster(handle: JobHandle) -> tuple[str, list[str]]:
    """The job's number, and `-M cluster` where it has one."""
    job, _, cluster = handle.id.partition("@")
    return job, ["-M", cluster] if cluster else []


def query_job(handle: JobHandle) -> QueryAnswer:
    """Query one command after the other until one has the job; all three only for jobs that have ended."""
    errors: list[str] = []
    known_missing = False
    for ask in (_squeue, _scontrol, _sacct):
        if ask is _scontrol and errors:
            continue  # it queries the same daemon
        try:
            found = ask(handle)
        except UnavailableError as unavailable:
            errors.append(unavailable.what)
            continue
        if isinstance(found, SlurmJob):
            return QueryAnswer(_completed(found, handle))
        if found is None and ask is not _sacct:
            known_missing = True
        elif found is None:
            # The accounting database may not have the job yet: no evidence that the controller has not.
            errors.append("sacct knows no such job")
        else:
            errors.append(found)
    if known_missing:
        return QueryAnswer(None, forgotten=True)
    return QueryAnswer(None, error="; ".join(dict.fromkeys(errors)))


def _completed(found: SlurmJob, handle: JobHandle) -> SlurmJob:
    """Add the exit code and the number of restarts, which squeue does not report and scontrol does."""
    if found.source != "squeue" or found.state in ("RUNNING", "COMPLETING"):
        return found
    try:
        more = _scontrol(handle)
    except UnavailableError:
        return found
    return more if isinstance(more, SlurmJob) else found


def _squeue(handle: JobHandle) -> SlurmJob | str | None:
    job, where = job_and_cluster(handle)
    result = call(["squeue", *where, "-h", "-t", "all", "-j", job, "-o", _SQUEUE])
    return _read(result, lambda text: parse_squeue(text, job))


def _scontrol(handle: JobHandle) -> SlurmJob | str | None:
    job, where = job_and_cluster(handle)
    return _read(call(["scontrol", *where, "show", "job", "-o", job]), parse_scontrol)


def _sacct(handle: JobHandle) -> SlurmJob | str | None:
    job, where = job_and_cluster(handle)
    words = ["-X", "-n", "--parsable2", "-o", "JobID,State,ExitCode,NodeList", "-j", job]
    return _read(call(["sacct", *where, *words]), lambda text: parse_sacct(text, job))


def _read(result: CommandResult, parse: Callable[[str], SlurmJob | None]) -> SlurmJob | str | None:
    """The job; None where the command has no such job; a text where the query itself failed."""
    if result.unknown_job:
        return None
    if result.returncode != 0:
        return f"{result.command}: {result.message}"
    return parse(result.stdout)


def parse_squeue(text: str, job: str) -> SlurmJob | None:
    """`123|PENDING|Resources||N/A`, one line a job; with -M a line `CLUSTER: name` stands before."""
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) >= 4 and cells[0] == job:
            start = cells[4] if len(cells) > 4 and cells[4] != "N/A" else ""
            return SlurmJob("squeue", _state(cells[1]), cells[2], cells[3], start)
    return None


def parse_scontrol(text: str) -> SlurmJob | None:
    """`key=value` words of `scontrol show job -o`; only the keys that every version has are read."""
    keys = dict(re.findall(r"(?:^|\s)(JobState|Restarts|ExitCode|NodeList|StartTime)=(\S*)", text))
    if "JobState" not in keys:
        return None
    # The one value of several words ("launch failed requeued held").
    reason = re.search(r"\sReason=(.*?)\s+(?:FailedNode=|Dependency=|\w+=)", text)
    return SlurmJob(
        "scontrol",
        _state(keys["JobState"]),
        reason[1].replace("_", " ") if reason else "",
        "" if keys.get("NodeList", "(null)") == "(null)" else keys["NodeList"],
        keys.get("StartTime", ""),
        int(keys["Restarts"]) if keys.get("Restarts", "").isdigit() else None,
        keys.get("ExitCode"),
    )


def parse_sacct(text: str, job: str) -> SlurmJob | None:
    """`123|CANCELLED by 1000|0:0|n[1-2]`; a job that was requeued has several lines, the last counts."""
    found = None
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) >= 4 and cells[0] == job:
            found = SlurmJob("sacct", _state(cells[1]), nodes=cells[3], exit_code=cells[2])
    return found


def _state(text: str) -> str:
    """`CANCELLED by 0` and `OUT_OF_ME+` are CANCELLED and OUT_OF_MEMORY."""
    from launchers._slurm.slurm_reasons import PHASES

    word = (text.split() or [""])[0].upper()
    if word.endswith("+"):
        whole = [state for state in PHASES if state.startswith(word[:-1])]
        return whole[0] if len(whole) == 1 else word
    return word


def exit_code_of(text: str | None) -> int | None:
    """Slurm's `code:signal` as a shell has it: 41:0 is 41, 0:9 is 137."""
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    if match is None:
        return None
    code, number = int(match[1]), int(match[2])
    return code if code or not number else 128 + number if number < 65 else None
