"""Options of the Slurm launcher, validated before anything is rendered."""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

# Options of sbatch that dist-train renders itself -> the option of ours that sets each.
_RENDERED = {
    "nodes": "--nodes",
    "ntasks": "--nodes and --gpus-per-node (one task per node runs the agent)",
    "ntasks-per-node": "--gpus-per-node (one task per node runs the agent)",
    "gpus": "--gpus-per-node",
    "gpus-per-node": "--gpus-per-node, --gpu-type",
    "gpus-per-task": "--gpus-per-node",
    "gres": "--gpus-per-node, --gpu-type, --gpu-request gres",
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
    "signal": "resilience.grace_s of the config",
    "output": "--run-dir",
    "error": "--run-dir",
    "open-mode": "nothing: logs are appended to",
    "export": "--env and --secret",
    "export-file": "--env and --secret",
    "chdir": "nothing: ranks run where `dist-train launch` was called",
    "array": "nothing: one job is one run",
    "wrap": "nothing",
    "wait": "nothing: `dist-train launch` waits unless --detach",
    "test-only": "--dry-run",
    "parsable": "--detach",
    "hold": "nothing: `scontrol hold JOB` after --detach",
}
_SBATCH_WORD = re.compile(r"[a-z][a-z0-9-]*(=.*)?")
_LIST_WORD = re.compile(r"[^\s'\"\\$`#]+")


def _flag(description: str, *flags: str, **extra: Any) -> Any:
    return Field(default=None, min_length=1, description=description, json_schema_extra=_extra(flags, extra))


def _extra(flags: tuple[str, ...], extra: dict[str, Any]) -> dict[str, Any]:
    return {**({"flags": list(flags)} if flags else {}), **extra}


class Options(BaseModel):
    """Options of sbatch; one that is not given is not rendered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str | None = _flag("Partition.", "-p", "--partition")
    account: str | None = _flag("Account.", "-A", "--account")
    qos: str | None = _flag("Quality of service.", "-q", "--qos")
    constraint: str | None = _flag("Features that the nodes must have.")
    exclude: str | None = _flag("Nodes to keep away from.")
    reservation: str | None = _flag("Reservation.")
    clusters: str | None = _flag("Cluster of a multi-cluster site.", "-M", "--clusters")
    gpu_type: str | None = _flag("Type of GPU, as the site calls it (a100).")
    gpu_request: Literal["gpus-per-node", "gres", "none"] = Field(
        default="gpus-per-node",
        description="How the site wants GPUs asked for; none: not at all.  [default: gpus-per-node]",
        json_schema_extra={"metavar": "gpus-per-node|gres|none"},
    )
    requeue: Literal["yes", "no", "site"] = Field(
        default="yes",
        description="Whether a preempted or time-limited job goes on by itself; site: as the site has it.  "
        "[default: yes]",
        json_schema_extra={"metavar": "yes|no|site"},
    )
    sbatch_arg: tuple[str, ...] = Field(
        default=(),
        description="Any other option of sbatch: nodelist=n1, exclusive, mail-type=END.  (repeatable)",
        json_schema_extra={"metavar": "K[=V]"},
    )
    setup: tuple[str, ...] = Field(
        default=(),
        description="A line of shell before the step: 'module load cuda'.  (repeatable)",
        json_schema_extra={"metavar": "LINE"},
    )
    exec_prefix: tuple[str, ...] = Field(
        default=(),
        description="What runs the agent: 'apptainer exec --nv image.sif'.",
        json_schema_extra={"metavar": "WORDS"},
    )
    python: str | None = _flag("Python on the nodes.  [default: this one's absolute path]")

    @field_validator(
        "partition", "account", "qos", "constraint", "exclude", "reservation", "clusters", "gpu_type"
    )
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and _LIST_WORD.fullmatch(value) is None:
            raise ValueError("it holds characters that no name in Slurm has")
        return value

    @field_validator("exec_prefix", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator("sbatch_arg", mode="after")
    @classmethod
    def _foreign(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        seen: dict[str, str] = {}
        for word in value:
            name = word.removeprefix("--").partition("=")[0]
            if _SBATCH_WORD.fullmatch(word.removeprefix("--")) is None or "\n" in word:
                raise ValueError(
                    f"{word!r} is not of the form option=value or option, in sbatch's long names"
                )
            if name in _RENDERED:
                raise ValueError(f"{name} is set by {_RENDERED[name]}")
            if seen.setdefault(name, word) != word:
                raise ValueError(f"{name} is given twice: {seen[name]} and {word}")
        return value

    @field_validator("setup", mode="after")
    @classmethod
    def _no_trap(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in (each for text in value for each in text.splitlines()):
            if re.search(r"\btrap\b.*\b(SIG)?TERM\b", line):
                raise ValueError(
                    f"{line!r} traps TERM: the script must end on it, or a cancelled job would be requeued"
                )
            if re.match(r"\s*(exec|exit)\b", line):
                raise ValueError(f"{line!r} would end the script before the step")
        return value

    @property
    def sbatch_arguments(self) -> dict[str, str | bool]:
        """--sbatch-arg as names and values; True for one without a value."""
        found: dict[str, str | bool] = {}
        for word in self.sbatch_arg:
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = value if equals else True
        return found
