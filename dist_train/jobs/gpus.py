"""The GPUs of this machine, seen without torch and without starting CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dist_train.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """One physical GPU."""

    index: int
    uuid: str
    name: str
    memory_used: int
    memory_total: int


def physical_gpus() -> list[Gpu]:
    """Every GPU that the driver knows; empty where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no permission: all mean that no GPU can be used
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order."""
    environ = os.environ if environ is None else environ
    gpus = physical_gpus()
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return gpus
    chosen: list[Gpu] = []
    for word in (word.strip() for word in asked.split(",")):
        found = [
            gpu for gpu in gpus if word in (str(gpu.index), gpu.uuid) or (word and gpu.uuid.startswith(word))
        ]
        if not found:
            break  # as CUDA does: the first name that does not exist ends the list
        chosen.append(found[0])
    return chosen


def choose_gpus(text: str, gpus: list[Gpu], count: int | None) -> list[Gpu]:
    """`--gpus 0,3` or `auto` (least used first); raises ConfigError with what there is."""
    if text == "auto":
        ordered = sorted(gpus, key=lambda gpu: (gpu.memory_used, gpu.index))
        return ordered if count is None else ordered[:count]
    words = text.split(",")
    numbers = [int(word) for word in words if word.isdigit()]
    if len(set(numbers)) == len(words) and max(numbers) < len(gpus):
        return [gpus[number] for number in numbers]
    raise ConfigError(
        f"--gpus {text}: this machine has {len(gpus)} visible GPU(s)",
        cause="each is named once, by its number from 0 within CUDA_VISIBLE_DEVICES",
        mend="`nvidia-smi -L` lists them; --device cpu runs without one",
    )


def _gpu(nvml: object, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    uuid = nvml.nvmlDeviceGetUUID(handle)  # type: ignore[attr-defined]
    name = nvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    return Gpu(index, _text(uuid), _text(name), int(memory.used), int(memory.total))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
