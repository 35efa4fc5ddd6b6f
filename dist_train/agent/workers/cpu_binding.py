"""Bind ranks to cores: the agent chooses, each rank binds itself (bind_rank)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError
from dist_train.jobs.cores.place_here import NodeShape, place_here
from dist_train.jobs.cores.place_ranks import Placement
from dist_train.jobs.gpus import Gpu
from dist_train.rundir import RunDir
from dist_train.rundir.cpu_list import cpu_list, parse_bind
from dist_train.rundir.records import read_json


def choose_cpus(
    settings: Settings,
    nodes_share_a_machine: bool,
    gpus: Sequence[Gpu] = (),
    root: Path = Path("/"),
) -> tuple[Settings, str]:
    """Choose the CPUs and the number of threads of this node's ranks.

    Args:
        gpus: those that the ranks compute on, by local rank; empty on CPU.

    Returns:
        The settings with both, and the line that says so (empty where nothing is bound). Where `bind` does
        not fit this machine, the settings have `cannot_start`: node 0 names the node and ends the run.
    """
    try:
        bind = parse_bind(settings.bind)
        if bind.mode == "none":
            return _unbound(settings), ""
        placed = place_here(bind, _shape(settings, nodes_share_a_machine, gpus), root)
    except (ConfigError, ValueError) as error:
        return replace(_unbound(settings), cannot_start=_why(error)), ""
    threads, origin = _threads(settings, placed)
    bound = replace(settings, rank_cpus=tuple(map(cpu_list, placed.cpus)), threads_per_rank=threads)
    return bound, _line(bound, placed, origin)


def _shape(settings: Settings, nodes_share_a_machine: bool, gpus: Sequence[Gpu]) -> NodeShape:
    unknown = ("",) * settings.procs if settings.device == "cuda" else ()
    bus_ids = tuple(gpu.bus_id for gpu in gpus) or unknown
    if nodes_share_a_machine:
        return NodeShape(settings.procs, settings.nodes, settings.node, bus_ids)
    return NodeShape(settings.procs, gpu_bus_ids=bus_ids)


def _unbound(settings: Settings) -> Settings:
    """Without binding: the number asked for, or (resumed with --bind none) that of an earlier attempt."""
    return replace(settings, threads_per_rank=settings.threads_per_rank or _threads_before(settings.run) or 1)


def _threads(settings: Settings, placed: Placement) -> tuple[int, str]:
    """The number asked for, that of an earlier attempt (it is part of the bits), or that of the cores."""
    if settings.threads_per_rank:
        return settings.threads_per_rank, ""
    before = _threads_before(settings.run)
    if before is not None and before != placed.threads:
        return before, f", as in the attempt before (its cores would be {placed.threads})"
    return placed.threads, ""


def _threads_before(run: RunDir) -> int | None:
    attempts = [int(path.name) for path in run.attempts.glob("[0-9]*") if path.name.isdigit()]
    for attempt in sorted(attempts, reverse=True):
        text = (read_json(run.attempts / str(attempt) / "fingerprint.json") or {}).get("threads_per_rank", "")
        if str(text).isdigit():
            return int(text)
    return None


def _line(settings: Settings, placed: Placement, origin: str) -> str:
    cpus = ", ".join(f"{local_rank}: {text}" for local_rank, text in enumerate(settings.rank_cpus))
    count = settings.threads_per_rank
    threads = f"{count} thread{'s' if count > 1 else ''} per rank{origin}"
    notes = "".join(f"; {note}" for note in placed.notes)
    return f"node {settings.node}: CPUs by local rank (--bind {settings.bind}): {cpus}; {threads}{notes}"


def _why(error: ConfigError | ValueError) -> str:
    if isinstance(error, ValueError):
        return f"--bind: {error}"
    parts = [error.what, *(part for part in (error.cause, error.hint) if part)]
    return "; ".join(parts)
