"""Which device and which GPUs of this machine a launch gets, with notices on the choice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dist_train.errors import ConfigError, UsageError
from dist_train.jobs.gpu_selection import choice_in_words, choose_gpus
from dist_train.jobs.gpus import Gpu, inventory, visibility_variables, visible_gpus

if TYPE_CHECKING:
    from dist_train.config.launch_section import LaunchConfig


@dataclass(frozen=True)
class Devices:
    """The job's device, processes per node, GPUs (empty: the cluster assigns them), and notices."""

    device: Literal["cpu", "cuda"]
    procs: int
    gpus: tuple[Gpu, ...] = ()
    notices: tuple[str, ...] = ()


def choose_devices(asked: str | None, launch: LaunchConfig) -> Devices:
    """Choose by --gpus, --device and the size; errors have both numbers, asked for and visible."""
    procs = launch.gpus_per_node or 1
    if launch.launcher != "local":
        if asked:
            raise UsageError(
                f"--gpus {asked} names GPUs of this machine",
                cause=f"this job goes to {launch.launcher}, which gives each node its GPUs",
                hint="drop it: --gpus-per-node says how many",
            )
        # This machine's GPUs do not matter: it may be a login node.
        return Devices("cpu" if launch.device == "cpu" else "cuda", procs)
    if launch.device == "cpu":
        if asked:
            raise UsageError(f"--gpus {asked} contradicts --device cpu", hint="give one of them")
        return Devices("cpu", procs)
    visible = visible_gpus()
    if not visible and (asked or launch.device == "cuda"):
        raise _no_gpu(asked, launch.nodes * procs)
    if asked:
        return _asked(asked, visible, launch)
    if visible:
        return _first(visible, launch)
    count = launch.nodes * procs
    return Devices(
        "cpu", procs, notices=(f"no GPU on this machine: running {count} process(es) on CPU (gloo)",)
    )


def job_size(launch: LaunchConfig) -> tuple[Literal["cpu", "cuda"] | None, int]:
    """Return device and processes per node of a job that may be meant for another machine than this one.

    The device is None where it depends on the machine.
    """
    device: Literal["cpu", "cuda"] | None = "cpu" if launch.device == "cpu" else "cuda"
    if launch.device == "auto" and launch.launcher == "local":
        device = None
    if launch.gpus_per_node is not None or launch.launcher != "local":
        return device, launch.gpus_per_node or 1
    gpus = 0 if device == "cpu" else len(visible_gpus())
    return device, max(1, gpus // launch.nodes)


def _no_gpu(asked: str | None, needed: int) -> ConfigError:
    found = inventory()
    hidden = ", ".join(f"{n}={os.environ[n]!r}" for n in visibility_variables(list(found.gpus), os.environ))
    gpus = "1 GPU was" if needed == 1 else f"{needed} GPUs were"
    return ConfigError(
        f"{f'--gpus {asked}' if asked else '--device cuda'}: {gpus} asked for, 0 are visible here",
        cause=found.reason or f"{hidden} means none of them",
        hint=f"{'drop --gpus: ' if asked else ''}--device cpu runs {needed} process(es) on CPU",
    )


def _first(visible: list[Gpu], launch: LaunchConfig) -> Devices:
    procs = launch.gpus_per_node or max(1, len(visible) // launch.nodes)
    needed = launch.nodes * procs
    if needed > len(visible):
        size = f"{launch.nodes} node(s) x {procs}"
        raise ConfigError(
            f"{needed} GPUs were asked for ({size}), {len(visible)} are visible here",
            hint=f"ask for at most {len(visible)}, or add --device cpu to run {needed} processes on CPU",
        )
    notice = f"GPUs: the first {needed} of {len(visible)} visible (--gpus auto takes the least used)"
    return Devices("cuda", procs, tuple(visible[:needed]), (notice,) if needed < len(visible) else ())


def _asked(asked: str, visible: list[Gpu], launch: LaunchConfig) -> Devices:
    nodes = launch.nodes
    count = None if launch.gpus_per_node is None else nodes * launch.gpus_per_node
    chosen = choose_gpus(asked, visible, count)
    per_node, rest = divmod(len(chosen), nodes)
    if not per_node:
        raise ConfigError(
            f"--gpus {asked}: {nodes} GPUs are needed, one for each node, and it gives {len(chosen)}",
            hint=f"--nodes {max(1, len(chosen))}, or --device cpu",
        )
    if rest and asked != "auto":
        raise ConfigError(
            f"--gpus {asked}: {len(chosen)} GPUs cannot be shared out evenly to {nodes} nodes",
            hint="name as many for each simulated node",
        )
    chosen = chosen[: per_node * nodes]
    procs = launch.gpus_per_node or per_node
    notices = [choice_in_words(asked, chosen, visible)]
    if per_node > procs:
        _refuse_slices(asked, chosen, per_node)
        notices.append(
            f"{per_node} GPUs for {procs} process(es) of a node: process i computes on the i-th; "
            "all are visible, for code that drives several (strategy dp, a model split by hand)"
        )
    return Devices("cuda", procs, tuple(chosen), tuple(notices))


def _refuse_slices(asked: str, chosen: list[Gpu], per_node: int) -> None:
    if any(gpu.slice is not None for gpu in chosen):
        raise ConfigError(
            f"--gpus {asked}: it gives a process several GPUs, and some are MIG slices",
            cause="CUDA shows a process one slice at most",
            hint=f"--gpus-per-node {per_node}, a process for each",
        )
