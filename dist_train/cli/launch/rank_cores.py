"""Refuse a `--bind` that cannot fit, before any file is written; the agent of each node checks it again."""

from __future__ import annotations

from dist_train.errors import ConfigError
from dist_train.jobs.cores.place_here import NodeShape, place_here
from dist_train.jobs.spec import JobSpec
from dist_train.rundir.cpu_list import parse_bind


def refuse_unfit_binding(spec: JobSpec, launcher: str) -> None:
    """Raise ConfigError: unknown words, lists for another number of ranks; here, cores that are not there."""
    try:
        bind = parse_bind(spec.bind)
    except ValueError as error:
        raise ConfigError(f"--bind {spec.bind}: {error}") from None
    if bind.mode == "lists" and len(bind.lists) != spec.procs_per_node:
        raise ConfigError(
            f"--bind {spec.bind} has {len(bind.lists)} list(s) of CPUs, "
            f"and each node has {spec.procs_per_node} rank(s)",
            hint="one list for each local rank, with / between them: --bind 0-3,8/4-7",
        )
    if bind.mode != "none" and launcher == "local":
        place_here(bind, NodeShape(spec.procs_per_node, here=spec.nodes))
