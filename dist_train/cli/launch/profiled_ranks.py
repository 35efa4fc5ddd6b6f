"""Refuse `--profile` and `--profile-ranks` that cannot be, before any file is written."""

from __future__ import annotations

from dist_train.errors import ConfigError
from dist_train.jobs.spec import JobSpec
from dist_train.profiling.profiled_steps import DEFAULT, NONE, parse_ranks


def refuse_unfit_profile(spec: JobSpec) -> None:
    """Raise ConfigError for ranks that the job has not, and for ranks without steps."""
    if spec.profile == NONE and spec.profile_ranks != "0":
        raise ConfigError(
            f"--profile-ranks {spec.profile_ranks} without --profile: nothing is profiled",
            hint=f"--profile {DEFAULT} --profile-ranks {spec.profile_ranks}",
        )
    named = parse_ranks(spec.profile_ranks) or frozenset()
    missing = sorted(rank for rank in named if rank >= spec.world_size)
    if missing:
        last = spec.world_size - 1
        raise ConfigError(
            f"--profile-ranks {spec.profile_ranks}: there is no rank {', '.join(map(str, missing))}",
            cause=f"this job's ranks are {f'0 to {last}' if last else '0 alone'}",
            hint="--profile-ranks all profiles every rank",
        )


def profiled_ranks_at(text: str, world_size: int) -> str:
    """Of a list that another size was started with, the ranks that are there; rank 0 if none is."""
    named = parse_ranks(text)
    if named is None:
        return text
    return ",".join(str(rank) for rank in sorted(named) if rank < world_size) or "0"
