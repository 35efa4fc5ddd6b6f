"""What the bits of a run depend on, and the mode that makes them reproducible on GPUs."""

from __future__ import annotations

import os
import platform

import torch

from dist_train.distributed.control_group import JsonValue
from dist_train.errors import ConfigError

# CUDA's libraries read these when they start; each fixes a choice that they would make by size or load.
_PINNED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}


def apply(mode: str, device: torch.device | str) -> None:
    """Apply a `deterministic` mode; call it before dt.init and before the first CUDA kernel.

    Args:
        mode: none (on CPU the bits are equal at the same world size anyway) or same_world_size.

    Raises:
        ConfigError: for an unknown mode, and where the environment pins another choice.
    """
    if mode == "none":
        return
    if mode != "same_world_size":
        raise ConfigError(
            f"deterministic mode {mode!r} is not available",
            hint="use none or same_world_size",
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if torch.device(device).type == "cuda":
        _pin_libraries()


def _pin_libraries() -> None:
    for name, value in _PINNED.items():
        if os.environ.setdefault(name, value) != value:
            raise ConfigError(
                f"{name}={os.environ[name]} contradicts deterministic: same_world_size",
                hint=f"unset {name}, or set it to {value}",
            )


def facts(device: torch.device) -> dict[str, JsonValue]:
    """What a checkpoint's manifest records, so that a resume elsewhere can report what differs."""
    out: dict[str, JsonValue] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads_per_rank": torch.get_num_threads(),
        "device": device.type,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "algorithms": "deterministic" if torch.are_deterministic_algorithms_enabled() else "default",
    }
    if device.type == "cuda":
        out["gpu"] = torch.cuda.get_device_name(device)
        out["conv_tf32"] = torch.backends.cudnn.allow_tf32
        out["cuda"] = torch.version.cuda
        out["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return out
