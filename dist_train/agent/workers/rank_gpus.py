"""Which GPUs a rank may see: set before CUDA or HIP can start, whatever the script does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dist_train.agent.settings import Settings
from dist_train.jobs.gpus import Gpu

_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


def choose_slices(settings: Settings, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Settings:
    """Give each rank one of the visible GPUs where some are MIG slices: CUDA shows a process one at most.

    Args:
        gpus: the visible ones as the driver lists them; empty where it does not.
    """
    ids = _one_each(gpus, environ)
    if settings.device != "cuda" or not ids:
        return settings
    if len(ids) < settings.procs:
        why = (
            f"{settings.procs} ranks need a GPU or MIG slice each, and {len(ids)} may be used here "
            f"({', '.join(ids)}); --gpus-per-node {len(ids)}, or cut the GPUs into more slices"
        )
        return replace(settings, cannot_start=settings.cannot_start or why)
    return replace(settings, rank_gpus=ids[: settings.procs])


def _one_each(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The visible GPUs and slices if some are slices; else empty."""
    if any(gpu.slice is not None for gpu in gpus):
        return tuple(gpu.uuid for gpu in gpus)
    # The driver is silent, or names them otherwise: MIG-GPU-<UUID>/7/0 of older drivers.
    words = tuple(word.strip() for word in environ.get(_CUDA, "").split(","))
    return words if not gpus and any(word.startswith("MIG-") for word in words) else ()


def gpu_environ(
    environ: Mapping[str, str],
    device: str,
    local_rank: int,
    rank_gpus: Sequence[str] = (),
    rocm: bool = False,
) -> dict[str, str]:
    """Return the variables of CUDA or HIP to add for one rank.

    Numbers count in the order of the PCI bus, as nvidia-smi's do.

    Args:
        rank_gpus: the one GPU of each rank, by `choose_slices`; empty: ranks see all GPUs of the node.
        rocm: torch is built for AMD's GPUs.
    """
    if device != "cuda":
        return {}
    if rocm:
        return _without_a_second_choice(environ)
    added = {} if _ORDER in environ else {_ORDER: "PCI_BUS_ID"}
    if rank_gpus:
        added[_CUDA] = rank_gpus[local_rank]
    return added


def _without_a_second_choice(environ: Mapping[str, str]) -> dict[str, str]:
    """Some schedulers write one list into both variables (Slurm without AutoDetect). HIP would choose by the
    second among those that the first has left: of GPUs 2,3 the second and third, and there are none.
    """
    chosen = environ.get(_ROCR, "")
    if not chosen or _HIP in environ or environ.get(_CUDA) != chosen:
        return {}
    return {_HIP: ",".join(map(str, range(len(chosen.split(",")))))}
