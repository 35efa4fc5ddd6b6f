"""Slurm's commands: called with a bound and a known environment; what they say, in our errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dist_train.errors import UnavailableError

# sbatch hands its whole environment to the job (--export=ALL), and slurmctld keeps it: so it gets
# only these, and never a login shell's tokens.
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "SLURM_CONF"),
        *("PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "KRB5CCNAME"),
        *("MODULEPATH", "MODULESHOME", "MODULES_CMD", "LOADEDMODULES", "_LMFILES_", "BASH_ENV"),
    }
)
_KEPT_PREFIXES = ("LC_", "LMOD_", "NCCL_", "GLOO_", "UCX_", "FI_", "BASH_FUNC_")
# What would change the job behind the script's back, of an enclosing job or of a login shell.
_OVERRIDING_PREFIXES = (
    *("SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SUBMITIT_"),
    *("TORCHELASTIC_", "DIST_TRAIN_"),
)
_OVERRIDING = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    }
)
_NO_CONTROLLER = re.compile(
    r"unable to contact slurm controller|connection refused|connection timed out|connect failure|"
    r"communication connection failure|zero bytes were transmitted|socket timed out|"
    r"could not establish a configuration source|munge encode failed|unable to (create|establish)|"
    r"slurm_load_jobs error: unable|protocol authentication error",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
QUERY_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 120.0
_BEFORE_PING_S = 2.0


@dataclass(frozen=True)
class Said:
    """A finished command."""

    command: str
    returncode: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """Slurm's own words, without the command's name before each line."""
        lines = (re.sub(r"^\w+: (error: )?", "", line).strip() for line in self.stderr.splitlines())
        return "; ".join(line for line in lines if line) or f"exit code {self.returncode}, and no word"

    @property
    def unreachable(self) -> bool:
        """Whether nobody answered, which says nothing about any job."""
        return self.returncode != 0 and _NO_CONTROLLER.search(self.stderr) is not None

    @property
    def unknown_job(self) -> bool:
        """Whether Slurm answered that it does not know the job (any more)."""
        return self.returncode != 0 and _UNKNOWN_JOB.search(self.stderr) is not None


def call(argv: Sequence[str], timeout_s: float = QUERY_TIMEOUT_S) -> Said:
    """Run one command of Slurm; raises UnavailableError (69) when it is missing or does not answer.

    A command that faces a dead controller tries for 18 s; `scontrol ping` knows it at once, and ends
    the wait of all but the submission itself, whose job may have been taken.
    """
    if shutil.which(argv[0]) is None:
        raise UnavailableError(
            f"{argv[0]} is not on this machine's PATH",
            cause="Slurm's commands are where its login nodes are",
            mend="launch from a login node; `dist-train launch … --dry-run > job.sbatch` needs no Slurm",
        )
    _refuse_missing_configuration()
    with subprocess.Popen(
        list(argv),
        env=submit_environ(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, err = _communicate(process, argv, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UnavailableError(
                f"Slurm's controller cannot be reached: {argv[0]} has no answer",
                cause="it is down, or cannot be reached from here",
                mend="`scontrol ping` asks it",
            ) from None
    return Said(argv[0], process.returncode, out, err)


def _refuse_missing_configuration() -> None:
    """Slurm's commands would look for the file for a minute."""
    path = os.environ.get("SLURM_CONF")
    if path and not os.path.exists(path):
        raise UnavailableError(
            f"SLURM_CONF={path}: there is no such file", mend="unset SLURM_CONF, or correct it"
        )


def _communicate(process: subprocess.Popen[str], argv: Sequence[str], timeout_s: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=_BEFORE_PING_S)
    except subprocess.TimeoutExpired:
        submits = argv[0] == "sbatch" and "--test-only" not in argv
        if not submits and "-M" not in argv and _all_controllers_down():
            raise
    return process.communicate(timeout=timeout_s)


def _all_controllers_down() -> bool:
    words = ["scontrol", "ping"]
    try:
        said = subprocess.run(
            words, env=submit_environ(os.environ), capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return " is DOWN" in said and " is UP" not in said


def submit_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What sbatch may see of an environment."""
    return {name: value for name, value in environ.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def dropped_names(environ: Mapping[str, str]) -> list[str]:
    """Variables that were kept from sbatch, and that would have changed the job if they had not been."""
    overriding = (name for name in environ if name in _OVERRIDING or name.startswith(_OVERRIDING_PREFIXES))
    return sorted(name for name in overriding if not _is_kept(name))


def unreachable_error(said: Said) -> UnavailableError:
    """The controller is down: said as such, never as a failed job."""
    return UnavailableError(
        f"Slurm's controller cannot be reached: {said.words}",
        mend="`scontrol ping` asks it; `dist-train launch … --dry-run > job.sbatch` needs no Slurm",
    )
