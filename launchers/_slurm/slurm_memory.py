"""Jobs that were out of memory: what Slurm printed about it, and the --mem for the next start."""

from __future__ import annotations

import re

from dist_train.jobs.memory_kills import twice
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from dist_train.rundir.format_amounts import parse_size
from dist_train.rundir.records import read_json

# slurmstepd's line of 20.11, of 22.05 and later (with a node's name, or a date), and srun's own.
_KILLED = re.compile(
    r"^(?:(?:slurmstepd|srun)[\w.-]*:|\[[\dT:.-]+\]) error: "
    r".*(?:Detected \d+ oom[-_]kill event|task \S+: Out Of Memory).*$",
    re.MULTILINE,
)
_TAIL_BYTES = 64 * 1024


def kill_line(run: RunDir, job: str) -> str:
    """The last line of Slurm itself about a kill for memory in the job's output; empty without one."""
    found = ""
    for path in sorted(run.logs.glob(f"{job}_*_log.out")):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            continue
        found = ([found, *_KILLED.findall(text)])[-1]
    return found


def resume_with_more(run: RunDir) -> str:
    """The command that continues the run with twice the limit that was reached, else twice its --mem."""
    amount = _twice_what_it_had(run)
    return f"dist-train resume {run.path} --mem {amount}" if amount else ""


def _twice_what_it_had(run: RunDir) -> str:
    failure = read_failure(run)
    if failure is not None and failure.memory_limit is not None:
        return twice(failure.memory_limit)
    spec = (read_json(run.job) or {}).get("spec") or {}
    asked = str(dict(spec.get("resources") or ()).get("mem") or "")
    try:
        return twice(parse_size(f"{asked}M" if asked.isdigit() else asked.upper()))
    except ValueError:
        return ""
