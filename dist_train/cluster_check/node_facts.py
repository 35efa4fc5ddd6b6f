"""All facts of this node, and what could not be looked at."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from dist_train import __version__
from dist_train.cluster_check.disk_state import read_disk
from dist_train.cluster_check.gpu_state import driver_versions, read_gpus
from dist_train.cluster_check.network_state import read_network
from dist_train.cluster_check.rank_limits import read_limits
from dist_train.doctor.facts import NetworkFacts, NodeFacts
from dist_train.jobs.gpus import inventory, visible_among

T = TypeVar("T")


def read_node(node: int, device: str, folder: Path, environ: Mapping[str, str], port: int) -> NodeFacts:
    """Gather everything; one part that fails is a problem of its own, and the others are still there.

    Args:
        folder: in the run directory, for files that are written to see how long it takes.
        port: of this node's listener.
    """
    problems: list[str] = []

    def part(name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
            return otherwise

    found = inventory()
    visible = visible_among(list(found.gpus), environ) if device == "cuda" else []
    mark = f"{node}-{os.getpid()}"
    disks = (
        read_disk("run directory", folder, mark),
        read_disk("temporary files", Path(tempfile.gettempdir()), mark),
    )
    return NodeFacts(
        node=node,
        host=socket.gethostname(),
        versions=part("versions", lambda: read_versions(device), {}),
        gpus=part("GPUs", lambda: read_gpus(visible), ()),
        no_gpu_because=found.reason or "",
        unusable_gpus=found.left_out if device == "cuda" else (),
        network=part("network", lambda: read_network(environ), NetworkFacts()),
        limits=part("limits", read_limits, None),
        disks=disks,
        port=port,
        problems=tuple(problems),
    )


def read_versions(device: str) -> dict[str, str]:
    """Versions that ranks of one job should have in common, by name."""
    found = {
        "dist-train": __version__,
        "torch": _installed("torch"),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "C library": " ".join(platform.libc_ver()).strip(),
        "numpy": _installed("numpy"),
    }
    return found | (_of_cuda() if device == "cuda" else {})


def _of_cuda() -> dict[str, str]:
    import torch

    if torch.version.hip is not None:
        return {"ROCm of torch": torch.version.hip}
    built = torch.version.cuda or "none"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none"  # type: ignore[no-untyped-call]
    return {"CUDA of torch": built, "NCCL": nccl, **driver_versions()}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
