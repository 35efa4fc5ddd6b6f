"""Run one command of Slurm with a time-out and a filtered environment; its messages become our errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dist_train.errors import UnavailableError

# sbatch passes its whole environment to the job (--export=ALL), and slurmctld stores it: so it gets only
# these variables, and never a login shell's tokens.
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "SLURM_CONF"),
        *("PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "KRB5CCNAME"),
        *("MODULEPATH", "MODULESHOME", "MODULES_CMD", "LOADEDMODULES", "_LMFILES_", "BASH_ENV"),
    }
)
_KEPT_PREFIXES = ("LC_", "LMOD_", "NCCL_", "GLOO_", "UCX_", "FI_", "BASH_FUNC_")
# Variables of an enclosing job or a login shell that would override what the script requests.
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
# The request was sent; what became of it is not known.
_SENT = re.compile(r"timed out on send/recv|zero bytes were transmitted", re.IGNORECASE)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
QUERY_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 120.0
_BEFORE_PING_S = 2.0


@dataclass(frozen=True)
class CommandResult:
    """A finished command."""

    command: str
    returncode: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """Slurm's message, without the command's name before each line."""
        lines = (re.sub(r"^\w+: (error: )?", "", line).strip() for line in self.stderr.splitlines())
        return "; ".join(line for line in lines if line) or f"exit code {self.returncode}, and no message"

    @property
    def unreachable(self) -> bool:
        """Whether no controller answered, which is no information on any job."""
        return self.returncode != 0 and _NO_CONTROLLER.search(self.stderr) is not None

    @property
    def without_answer(self) -> bool:
        """Whether the controller may have got the request, and did not answer it."""
        return self.returncode != 0 and _SENT.search(self.stderr) is not None

    @property
    def unknown_job(self) -> bool:
        """Whether Slurm answered that it has no such job (any more)."""
        return self.returncode != 0 and _UNKNOWN_JOB.search(self.stderr) is not None


class NoAnswer(UnavailableError):
    """A command of Slurm did not end in time."""


def call(argv: Sequence[str], timeout_s: float = QUERY_TIMEOUT_S, own_session: bool = False) -> CommandResult:
    """Run one command of Slurm; raise UnavailableError (69) if it is missing or does not answer.

    With a dead controller a command retries for 18 s; `scontrol ping` reports it at once and ends the wait,
    except that of the submission itself, whose job may have been accepted.

    Args:
        own_session: keep a terminal's Ctrl-C from the command.
    """
    if shutil.which(argv[0]) is None:
        raise UnavailableError(
            f"{argv[0]} is not on this machine's PATH",
            cause="Slurm's commands are where its login nodes are",
            hint="launch from a login node; `dist-train launch … --dry-run > job.sbatch` needs no Slurm",
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
        start_new_session=own_session,
    ) as process:
        try:
            out, err = _communicate(process, argv, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NoAnswer(
                f"Slurm's controller cannot be reached: {argv[0]} has no answer",
                cause="it is down, or cannot be reached from here",
                hint="`scontrol ping` asks it",
            ) from None
        except KeyboardInterrupt:
            process.kill()
            raise
    return CommandResult(argv[0], process.returncode, out, err)


def _refuse_missing_configuration() -> None:
    """Fail at once: Slurm's commands would try to open the file for a minute."""
    path = os.environ.get("SLURM_CONF")
    if path and not os.path.exists(path):
        raise UnavailableError(
            f"SLURM_CONF={path}: there is no such file", hint="unset SLURM_CONF, or correct it"
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
        output = subprocess.run(
            words, env=submit_environ(os.environ), capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return " is DOWN" in output and " is UP" not in output


def submit_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that sbatch gets."""
    return {name: value for name, value in environ.items() if is_kept(name)}


def is_kept(name: str) -> bool:
    """Whether sbatch gets this variable."""
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def dropped_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that sbatch does not get, and that would have changed the job."""
    overriding = (name for name in environ if name in _OVERRIDING or name.startswith(_OVERRIDING_PREFIXES))
    return sorted(name for name in overriding if not is_kept(name))


def unreachable_error(result: CommandResult) -> UnavailableError:
    """The error for a controller that is down; it is never reported as a failed job."""
    return UnavailableError(
        f"Slurm's controller cannot be reached: {result.message}",
        hint="`scontrol ping` asks it; `dist-train launch … --dry-run > job.sbatch` needs no Slurm",
    )
