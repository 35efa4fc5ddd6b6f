"""`--sbatch-arg` and `--srun-arg`: options of sbatch and of srun that have no option here.

What dist-train renders itself is refused with the option that sets it: given twice, one of both would be
ignored without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from launchers._slurm.script_values import holds_control_character

# Options of sbatch that dist-train renders itself -> the option of ours that sets each.
OF_SBATCH = {
    "nodes": "--nodes",
    "ntasks": "--nodes and --gpus-per-node (one task per node runs the agent)",
    "ntasks-per-node": "--gpus-per-node (one task per node runs the agent)",
    "gpus": "--gpus-per-node",
    "gpus-per-node": "--gpus-per-node, --gpu-type",
    "gpus-per-task": "--gpus-per-node",
    "cpus-per-task": "--cpus-per-gpu",
    "cpus-per-gpu": "--cpus-per-gpu",
    "mem": "--mem",
    "time": "--time",
    "job-name": "--name",
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "exclude": "--exclude",
    "reservation": "--reservation",
    "clusters": "--clusters",
    "requeue": "--requeue yes",
    "no-requeue": "--requeue no",
    "output": "--run-dir",
    "error": "--run-dir",
    "open-mode": "nothing: logs are appended to",
    "export": "--env and --secret",
    "export-file": "--env and --secret",
    "chdir": "nothing: ranks run where `dist-train launch` was called",
    "array": "nothing: one job is one run, and all elements would have its directory. Instead: "
    "for i in 1 2 3; do dist-train launch … --name sweep-$i --detach; done. An array of runs of one node "
    "each: a script of your own with `dist-train launch --launcher local --name sweep-$SLURM_ARRAY_TASK_ID`",
    "wrap": "nothing",
    "wait": "nothing: `dist-train launch` waits unless --detach",
    "test-only": "--dry-run",
    "parsable": "--detach",
    "hold": "nothing: `scontrol hold JOB` after --detach",
    "help": "nothing",
    "usage": "nothing",
    "version": "nothing",
    "uid": "nothing: the job is that of who submits it",
    "gid": "nothing: the job is that of who submits it",
}
_ALL_NODES = "nothing: the step runs one agent on every node of the job"
_AS_THE_JOB = "the job: its step has all of it"
# Options of srun, likewise.
OF_SRUN = {
    **dict.fromkeys(("nodes", "nodelist", "nodefile", "exclude", "relative", "het-group"), _ALL_NODES),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket"), _ALL_NODES),
    **dict.fromkeys(("ntasks-per-gpu", "multi-prog", "no-kill", "jobid"), _ALL_NODES),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _AS_THE_JOB),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tres-per-task"), _AS_THE_JOB),
    **dict.fromkeys(("partition", "account", "qos", "constraint", "reservation"), _AS_THE_JOB),
    "clusters": "--clusters",
    "cpus-per-task": "--cpus-per-gpu",
    "cpus-per-gpu": "--cpus-per-gpu",
    "kill-on-bad-exit": "dist-train to 1: a lost agent must end the step",
    "wait": "--kill-on-bad-exit=1, which dist-train gives",
    "signal": "the job: --sbatch-arg signal=…",
    "time": "--time",
    "job-name": "--name",
    "output": "--run-dir",
    "error": "--run-dir",
    "input": "nothing: ranks have no standard input",
    "open-mode": "nothing: logs are appended to",
    "label": "--show-ranks all, which names the rank in each line",
    "unbuffered": "dist-train",
    "pty": "nothing: `dist-train logs -f` follows a job",
    "export": "--env and --secret",
    "export-file": "--env and --secret",
    "chdir": "nothing: ranks run where `dist-train launch` was called",
    "test-only": "--dry-run",
    "help": "nothing",
    "usage": "nothing",
    "version": "nothing",
}
# Options of Slurm with which a name above begins.
_NO_ABBREVIATIONS = frozenset({"export", "gpu", "mem", "ntasks", "nodes", "wait", "open", "gpus"})
_WORD = re.compile(r"[a-z][a-z0-9-]*(=.*)?", re.DOTALL)


def check_words(words: Iterable[str], command: str, rendered: Mapping[str, str]) -> None:
    """Raise ValueError for a word that is no `option=value` or `option`, is ours, or contradicts another.

    Args:
        command: `sbatch` or `srun`, for messages.
        rendered: options that dist-train renders itself -> what sets each.
    """
    seen: dict[str, str] = {}
    for word in words:
        name, _ = _split(word)
        if _WORD.fullmatch(word.removeprefix("--")) is None or holds_control_character(word):
            raise ValueError(f"{word!r} is not of the form option=value or option, in {command}'s long names")
        if name in rendered:
            raise ValueError(f"{name} is set by {rendered[name]}")
        if (full := _abbreviated(name, rendered)) is not None:
            raise ValueError(f"{name} is short for {full}, which is set by {rendered[full]}")
        if seen.setdefault(name, word) != word:
            raise ValueError(f"{name} is given twice: {seen[name]} and {word}")


def _abbreviated(name: str, rendered: Mapping[str, str]) -> str | None:
    """The option that getopt_long(3) takes this name for, unless it is one of its own."""
    if name in _NO_ABBREVIATIONS:
        return None
    return next((full for full in rendered if full.startswith(name)), None)


def as_arguments(words: Iterable[str]) -> dict[str, str | bool]:
    """Words as names and values; True for one without a value."""
    return dict(_split(word) for word in words)


def _split(word: str) -> tuple[str, str | bool]:
    name, equals, value = word.removeprefix("--").partition("=")
    return name, value if equals else True
