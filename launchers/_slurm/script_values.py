"""The form of each value that the batch script holds, checked before any is rendered.

A value after `#SBATCH` stands on a line of its own, which ends at a line break whatever quotes it: what
follows would be a line of shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec

# Characters that are impossible in the name of a file that Slurm opens (sbatch, "filename pattern").
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f'\"\\$`#]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MEMORY = re.compile(r"\d{1,15}([KMGT]B?)?", re.IGNORECASE)
_COUNT = re.compile(r"[1-9]\d{0,5}")
# Variables of the script itself: it would overwrite an exported variable of the same name.
_SCRIPT_VARIABLES = (
    *("python", "shield", "see", "seen", "blind", "gpus", "few", "step", "again"),
    *("control", "rc", "verdict", "why", "start", "end"),
)
_SLURMS_OWN = ("SLURM", "SBATCH_", "SRUN_", "SUBMITIT_")
# What a shell takes for itself or refuses to set: these go to the step alone, by env(1), and never into the
# script, which would find other commands, split words elsewhere, or run a file at each `bash -c`.
_SHELLS_OWN = frozenset(
    {
        *("PATH", "IFS", "ENV", "SHELLOPTS", "POSIXLY_CORRECT", "PS4", "CDPATH", "GLOBIGNORE", "EXECIGNORE"),
        *("UID", "EUID", "PPID", "GROUPS", "RANDOM", "SECONDS", "LINENO", "OPTIND", "OPTARG", "TIMEFORMAT"),
        *("DIRSTACK", "FUNCNAME", "FUNCNEST", "PIPESTATUS", "REPLY", "HOSTNAME", "SRANDOM", "PWD", "OLDPWD"),
        *("EPOCHSECONDS", "EPOCHREALTIME", "SHLVL", "TMOUT", "LD_PRELOAD", "LD_AUDIT", "_"),
    }
)


def holds_control_character(text: str) -> bool:
    """Whether a text has a line break or another character that ends a line of the script."""
    return _CONTROL.search(text) is not None


def goes_to_the_step_alone(name: str) -> bool:
    """Whether a variable of --env is set for the step by env(1), and not exported by the script."""
    return name in _SHELLS_OWN or name.startswith("BASH")


def check_spec(spec: JobSpec) -> None:
    """Raise ConfigError for a name, a size or a variable that the script cannot hold."""
    found = _UNUSABLE.search(str(spec.run_dir))
    if found is not None:
        raise ConfigError(
            f"the run directory {str(spec.run_dir)!r} contains {found[0]!r}",
            cause="Slurm itself opens the job's output file there, and takes no such name",
            hint="give another one with --run-dir DIR",
        )
    resources = dict(spec.resources)
    _check("the job's name", spec.name, _NAME, "letters, digits, dots, dashes and underscores: --name NAME")
    _check("--mem", resources.get("mem"), _MEMORY, "a number with K, M, G or T: --mem 64G")
    _check("--cpus-per-gpu", resources.get("cpus_per_gpu"), _COUNT, "a number of cores: --cpus-per-gpu 8")
    for name, value in spec.env:
        _check_variable(name, value)
    for value in (spec.target.value, spec.target.folder, *spec.target.args):
        _refuse_nul("the target and its arguments", value)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option of sbatch with a line break or another control character."""
    for name, value in parameters.items():
        if isinstance(value, str) and _CONTROL.search(value):
            raise ConfigError(
                f"{name}: {value!r} holds a line break or another control character",
                cause="in the job's script, what follows it would be a command",
                hint="give it without",
            )


def _check(what: str, value: str | None, form: re.Pattern[str], hint: str) -> None:
    if value is not None and form.fullmatch(value) is None:
        raise ConfigError(f"{what}: {value!r} is not of the form that Slurm takes", hint=hint)


def _check_variable(name: str, value: str) -> None:
    if name in _SCRIPT_VARIABLES:
        raise ConfigError(
            f"--env {name}: the job's script has a variable of this name",
            hint="set it in the program instead, or under another name",
        )
    if name.startswith(_SLURMS_OWN):
        raise ConfigError(
            f"--env {name}: Slurm sets these variables itself",
            cause="the job's script, srun and the agents read in them which job and which node they are",
            hint="an option of sbatch: --sbatch-arg K=V; a variable that srun reads: "
            f"--setup 'export {name}=VALUE'",
        )
    _refuse_nul(f"--env {name}", value)


def _refuse_nul(what: str, value: str) -> None:
    if "\0" in value:
        raise ConfigError(f"{what}: {value!r} holds a NUL character", hint="no program can be given one")
