"""Options of the Slurm launcher, validated before anything is rendered."""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from launchers._slurm.foreign_options import OF_SBATCH, OF_SRUN, as_arguments, check_words
from launchers._slurm.job_signal import JobSignal, parse_signal
from launchers._slurm.slurm_option_rows import OPTION_ROWS

_LIST_WORD = re.compile(r"[^\s'\"\\$`#]+")


def _word(name: str) -> Any:
    return OPTION_ROWS[name].field(min_length=1)


class Options(BaseModel):
    """Options of sbatch; one that is not given is not rendered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str | None = _word("partition")
    account: str | None = _word("account")
    qos: str | None = _word("qos")
    constraint: str | None = _word("constraint")
    exclude: str | None = _word("exclude")
    reservation: str | None = _word("reservation")
    clusters: str | None = _word("clusters")
    gpu_type: str | None = _word("gpu_type")
    gpu_request: Literal["gpus-per-node", "gres", "none"] = OPTION_ROWS["gpu_request"].field("gpus-per-node")
    requeue: Literal["yes", "no", "site"] = OPTION_ROWS["requeue"].field("yes")
    sbatch_arg: tuple[str, ...] = OPTION_ROWS["sbatch_arg"].field(())
    srun_arg: tuple[str, ...] = OPTION_ROWS["srun_arg"].field(())
    setup: tuple[str, ...] = OPTION_ROWS["setup"].field(())
    exec_prefix: tuple[str, ...] = OPTION_ROWS["exec_prefix"].field(())
    python: str | None = _word("python")

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
    def _of_sbatch(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_words(value, "sbatch", OF_SBATCH)
        given = as_arguments(value)
        if "gres" in given:
            _check_gres(given["gres"])
        if "signal" in given:
            parse_signal(given["signal"])
        return value

    @field_validator("srun_arg", mode="after")
    @classmethod
    def _of_srun(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_words(value, "srun", OF_SRUN)
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
        return as_arguments(self.sbatch_arg)

    @property
    def srun_arguments(self) -> dict[str, str | bool]:
        """--srun-arg, likewise."""
        return as_arguments(self.srun_arg)

    @property
    def signal(self) -> JobSignal | None:
        """The signal of --sbatch-arg, in place of ours."""
        given = self.sbatch_arguments.get("signal")
        return None if given is None else parse_signal(given)


def _check_gres(value: str | bool) -> None:
    """Other generic resources than GPUs: `nvme:1,craynetwork`."""
    if not isinstance(value, str) or _LIST_WORD.fullmatch(value) is None:
        raise ValueError(f"gres={value}: not of the form NAME[:TYPE][:COUNT],…")
    for item in value.split(","):
        name = re.sub(r"^gres[:/]", "", item).partition(":")[0].partition("=")[0]
        if name == "gpu":
            raise ValueError(
                f"gres={value}: its GPUs are set by --gpus-per-node, --gpu-type and --gpu-request gres; "
                "give the others alone"
            )
