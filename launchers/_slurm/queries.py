"""Where a job is, by squeue, then scontrol, then sacct: text formats only, which last over versions.

An answer, "Slurm does not know this job", and "nobody answered" are three different things; the last
one never means that the job has failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from dist_train.errors import UnavailableError
from dist_train.jobs import JobHandle
from launchers._slurm.client import Said, call

_SQUEUE = "%i|%T|%r|%N|%S"


@dataclass(frozen=True)
class Sighting:
    """What one command of Slurm says of a job. `exit_code` is Slurm's `code:signal`."""

    source: str
    state: str
    reason: str = ""
    nodes: str = ""
    # An estimate while the job waits: a new one is no news.
    start: str = field(default="", compare=False)
    restarts: int | None = None
    exit_code: str | None = None


@dataclass(frozen=True)
class Answer:
    """A sighting; or none, because Slurm has forgotten the job (`forgotten`), or because nobody answered."""

    sighting: Sighting | None
    forgotten: bool = False
    trouble: str = ""


def job_and_cluster(handle: JobHandle) -> tuple[str, list[str]]:
    """The job's number, and `-M cluster` where it has one."""
    job, _, cluster = handle.id.partition("@")
    return job, ["-M", cluster] if cluster else []


def look(handle: JobHandle) -> Answer:
    """Ask one after the other until somebody knows; the whole chain is for jobs that have ended."""
    troubles: list[str] = []
    known_missing = False
    for ask in (_squeue, _scontrol, _sacct):
        if ask is _scontrol and troubles:
            continue  # it asks the same daemon
        try:
            found = ask(handle)
        except UnavailableError as error:
            troubles.append(error.what)
            continue
        if isinstance(found, Sighting):
            return Answer(_completed(found, handle))
        if found is None and ask is not _sacct:
            known_missing = True
        elif found is None:
            # An accounting database that has not heard of it (yet) cannot speak for the controller.
            troubles.append("sacct knows no such job")
        else:
            troubles.append(found)
    if known_missing:
        return Answer(None, forgotten=True)
    return Answer(None, trouble="; ".join(dict.fromkeys(troubles)))


def _completed(found: Sighting, handle: JobHandle) -> Sighting:
    """squeue knows neither the exit code nor the number of restarts: scontrol does."""
    if found.source != "squeue" or found.state in ("RUNNING", "COMPLETING"):
        return found
    try:
        more = _scontrol(handle)
    except UnavailableError:
        return found
    return more if isinstance(more, Sighting) else found


def _squeue(handle: JobHandle) -> Sighting | str | None:
    job, where = job_and_cluster(handle)
    said = call(["squeue", *where, "-h", "-t", "all", "-j", job, "-o", _SQUEUE])
    return _read(said, lambda text: parse_squeue(text, job))


def _scontrol(handle: JobHandle) -> Sighting | str | None:
    job, where = job_and_cluster(handle)
    return _read(call(["scontrol", *where, "show", "job", "-o", job]), parse_scontrol)


def _sacct(handle: JobHandle) -> Sighting | str | None:
    job, where = job_and_cluster(handle)
    words = ["-X", "-n", "--parsable2", "-o", "JobID,State,ExitCode,NodeList", "-j", job]
    return _read(call(["sacct", *where, *words]), lambda text: parse_sacct(text, job))


def _read(said: Said, parse: Callable[[str], Sighting | None]) -> Sighting | str | None:
    """A sighting; None where the command knows no such job; text where the query itself failed."""
    if said.unknown_job:
        return None
    if said.returncode != 0:
        return f"{said.command}: {said.words}"
    return parse(said.stdout)


def parse_squeue(text: str, job: str) -> Sighting | None:
    """`123|PENDING|Resources||N/A`, one line a job; with -M a line `CLUSTER: name` stands before."""
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) >= 4 and cells[0] == job:
            start = cells[4] if len(cells) > 4 and cells[4] != "N/A" else ""
            return Sighting("squeue", _state(cells[1]), cells[2], cells[3], start)
    return None


def parse_scontrol(text: str) -> Sighting | None:
    """`key=value` words of `scontrol show job -o`; only the keys that every version has are read."""
    keys = dict(re.findall(r"(?:^|\s)(JobState|Restarts|ExitCode|NodeList|StartTime)=(\S*)", text))
    if "JobState" not in keys:
        return None
    # The one value of several words ("launch failed requeued held").
    reason = re.search(r"\sReason=(.*?)\s+(?:FailedNode=|Dependency=|\w+=)", text)
    return Sighting(
        "scontrol",
        _state(keys["JobState"]),
        reason[1].replace("_", " ") if reason else "",
        "" if keys.get("NodeList", "(null)") == "(null)" else keys["NodeList"],
        keys.get("StartTime", ""),
        int(keys["Restarts"]) if keys.get("Restarts", "").isdigit() else None,
        keys.get("ExitCode"),
    )


def parse_sacct(text: str, job: str) -> Sighting | None:
    """`123|CANCELLED by 1000|0:0|n[1-2]`; a job that was requeued has several lines, the last counts."""
    found = None
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) >= 4 and cells[0] == job:
            found = Sighting("sacct", _state(cells[1]), nodes=cells[3], exit_code=cells[2])
    return found


def _state(text: str) -> str:
    """`CANCELLED by 0` and `OUT_OF_ME+` are CANCELLED and OUT_OF_MEMORY."""
    from launchers._slurm.reasons import PHASES

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
