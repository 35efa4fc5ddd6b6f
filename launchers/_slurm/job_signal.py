"""The signal before a time limit: ours, or one that the site wants (`--sbatch-arg signal=B:USR1@300`).

Agents take USR2 and TERM as a notice to save and stop. Any other signal would end processes of the step; as
`B:SIGNAL` it goes to the batch script alone, which hands it on as USR2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NOTICES = ("USR2", "TERM")
_DEFAULT_BEFORE_S = 60  # sbatch's
_FORM = re.compile(r"(?:(?P<to>[RB]{1,2}):)?(?:SIG)?(?P<name>[A-Z][A-Z0-9]*)(?:@(?P<before>\d{1,5}))?")
# What a shell cannot catch, or what already has a meaning in the batch script.
_UNUSABLE = ("KILL", "STOP", "TERM", "CHLD", "CONT")


@dataclass(frozen=True)
class JobSignal:
    """`[{R|B}:]SIGNAL[@SECONDS]`, as sbatch takes it.

    Args:
        to_script: whether the batch script gets it, and not the step.
        before_s: how long before the time limit.
    """

    text: str
    name: str
    to_script: bool
    before_s: int


def parse_signal(text: str | bool) -> JobSignal:
    """The signal of `--sbatch-arg signal=…`; raises ValueError where the ranks would be killed by it."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"signal={text}: not of the form [B:]NAME@SECONDS, as in signal=USR2@300")
    name, to_script = found["name"], "B" in (found["to"] or "")
    if to_script and name in _UNUSABLE:
        raise ValueError(
            f"signal={text}: the batch script cannot hand {name} on to the ranks: give signal=B:USR1@SECONDS"
        )
    if not to_script and name not in NOTICES:
        raise ValueError(
            f"signal={text}: {name} would go to every process of the step and end it. Agents save and stop "
            f"on USR2: give signal=USR2@SECONDS, or signal=B:{name}@SECONDS, which the batch script hands on"
        )
    return JobSignal(str(text), name, to_script, int(found["before"] or _DEFAULT_BEFORE_S))


def handler(signal: JobSignal) -> list[str]:
    """Lines of the batch script that hand its signal on to the step."""
    return [
        f"# {signal.name} before the time limit: the agents get USR2, and save.",
        f"trap 'scancel --signal=USR2 \"$SLURM_JOB_ID\"' {signal.name}",
    ]


def in_background(step: str) -> str:
    """The step so that the shell hears a signal while it runs; its exit code is the last command's."""
    return f"""{step} &
# bash runs a trap only between commands, or in `wait`, which the signal ends.
step=$!
until wait "$step"; rc=$?; [ "$rc" -le 128 ] || ! kill -0 "$step" 2>/dev/null; do :; done
[ "$rc" -le 128 ] || {{ wait "$step" 2>/dev/null; again=$?; [ "$again" = 127 ] || rc=$again; }}
(exit "$rc")"""


def signal_note(signal: JobSignal, instead_of: str, grace_s: float) -> str:
    """What is shown of a signal that is not ours."""
    note = f"before the time limit Slurm sends {signal.text} (--sbatch-arg signal), not {instead_of}"
    if signal.to_script:
        note += "; the batch script hands it on to the agents as USR2"
    if signal.before_s < grace_s:
        note += f"; that is less than the {grace_s:g} s of resilience.grace_s that a save may take"
    return note
