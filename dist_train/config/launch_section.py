"""The `launch` section: where to run, and how often to restart. It does not change the results."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from dist_train.config.component import Section
from dist_train.config.secret_names import is_secret_name
from dist_train.profiling.profiled_steps import NONE, parse_ranks, parse_steps
from dist_train.rundir.cpu_list import parse_bind
from dist_train.rundir.log_text.log_parts import parse_log_limit

_INIT_METHOD = re.compile(r"env://|tcp://(?:\[[^\]]+\]|[^:/\[\]]+):\d{1,5}|file:///?[^/].*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Far above any cluster; without them a typing error would be rendered for hours.
MOST_NODES = 65_536
MOST_PROCESSES_PER_NODE = 1_024


class LaunchConfig(Section):
    """Where to run: one file serves all launchers, and the command line's flags win over it."""

    launcher: str = Field(default="local", description="local, slurm or kubernetes.", min_length=1)
    nodes: int = Field(
        default=1, ge=1, le=MOST_NODES, description="Number of nodes (simulated ones with local)."
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSES_PER_NODE,
        description="Processes per node, one GPU each. Default: all visible GPUs, or 1 on CPU.",
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=2**31 - 1,
        description="Restarts after crashes over the whole run; preemptions do not count.",
    )
    restart_on: Literal["crash", "any"] = Field(
        default="crash", description="crash: not after an exception of your own code. any: after that too."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: cuda; with the local launcher, cpu where there is no GPU."
    )
    init_method: str = Field(
        default="env://",
        description="How the workers' process group meets: env://, tcp://HOST:PORT or file:///PATH.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of every rank. No secrets: use --secret."
    )
    time: str | None = Field(
        default=None, min_length=1, description='Time limit, quoted: "4:00:00" is hours:minutes:seconds.'
    )
    mem: str | None = Field(default=None, min_length=1, description='Memory per node: "64G".')
    cpus_per_gpu: int | None = Field(default=None, ge=1, description="CPU cores per process.")
    bind: str = Field(
        default="none",
        description="Cores of each rank: none, cores (its own), numa (its NUMA node's) or lists: 0-3,8/4-7.",
    )
    log_limit: str = Field(
        default="4G",
        description="Most bytes of each rank's log, per attempt: of a longer one begin and end are kept.",
    )
    profile: str = Field(
        default=NONE,
        description='Optimizer steps to profile, from each attempt\'s start, quoted: "11:15"; or none.',
    )
    profile_ranks: str = Field(default="0", description='Ranks that are profiled: all, or "0,3".')
    slurm: dict[str, Any] = Field(
        default_factory=dict, description="Options of the Slurm launcher, which checks them."
    )
    kubernetes: dict[str, Any] = Field(
        default_factory=dict, description="Options of the Kubernetes launcher, which checks them."
    )

    @field_validator("init_method")
    @classmethod
    def _known_init_method(cls, value: str) -> str:
        if _INIT_METHOD.fullmatch(value) is None:
            raise ValueError("expected env://, tcp://HOST:PORT or file:///PATH")
        return value

    @field_validator("log_limit")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        parse_log_limit(value)
        return value

    @field_validator("bind")
    @classmethod
    def _names_cores(cls, value: str) -> str:
        parse_bind(value)
        return value

    @field_validator("profile")
    @classmethod
    def _names_steps(cls, value: str) -> str:
        parse_steps(value)
        return value

    @field_validator("profile_ranks")
    @classmethod
    def _names_ranks(cls, value: str) -> str:
        parse_ranks(value)
        return value

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if _ENV_NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is not the name of an environment variable")
            if is_secret_name(name):
                raise ValueError(
                    f"{name} looks like a secret, and this file is copied into the run directory: "
                    f"hand it over with --secret {name}"
                )
        return value
