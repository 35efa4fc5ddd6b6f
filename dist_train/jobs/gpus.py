"""The GPUs of this machine: NVIDIA's by nvidia-ml-py, AMD's by the kernel; torch and CUDA are not started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dist_train.jobs.amd_gpus import amd_inventory
from dist_train.jobs.gpu_records import Gpu, GpuProcess, Inventory, owner_of
from dist_train.jobs.torch_build import hip_version

__all__ = [
    "Gpu",
    "GpuProcess",
    "Inventory",
    "find",
    "inventory",
    "physical_gpus",
    "visible_among",
    "visible_gpus",
]

T = TypeVar("T")


def inventory() -> Inventory:
    """Every GPU that the installed torch can use, with its processes; or the reason why there are none."""
    if hip_version() is not None:
        return amd_inventory()
    found = _nvidia_inventory()
    if found.gpus:
        return found
    others = len(amd_inventory().gpus)
    if not others:
        return found
    reason = f"{found.reason}; {others} AMD GPU(s) are here, and this torch is not built for ROCm"
    return Inventory(reason=reason, left_out=found.left_out)


def _nvidia_inventory() -> Inventory:
    try:
        import pynvml
    except ImportError as error:
        return Inventory(reason=f"nvidia-ml-py cannot be imported: {error}")
    try:
        pynvml.nvmlInit()
    except Exception as error:
        # No library, no driver, no permission: in each case no GPU can be used; the error has the reason.
        return Inventory(reason=f"the NVIDIA driver does not answer: {error}")
    try:
        return _all(pynvml)
    except Exception as error:
        return Inventory(reason=f"the NVIDIA driver does not list its GPUs: {error}")
    finally:
        pynvml.nvmlShutdown()


def _all(nvml: Any) -> Inventory:
    """Query each GPU separately: the driver also counts those that this process may not use."""
    gpus: list[Gpu] = []
    left_out: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found = _at(nvml, index)
        except Exception as error:
            left_out.append(f"GPU {index}: {error}")
            continue
        gpus += found
        if not found:
            left_out.append(f"GPU {index}: MIG is on, and it is not cut into slices")
    why = f"none can be used ({'; '.join(left_out)})" if left_out else "knows no GPU"
    return Inventory(tuple(gpus), None if gpus else f"the NVIDIA driver answers, and {why}", tuple(left_out))


def physical_gpus() -> list[Gpu]:
    """Every GPU that the driver knows; empty where there is no driver."""
    return list(inventory().gpus)


def visible_gpus(environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """What the driver's variables leave, in their order; numbers count in the order of the PCI bus."""
    return visible_among(physical_gpus(), environ)


def visible_among(gpus: list[Gpu], environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """Of these GPUs, what CUDA_VISIBLE_DEVICES leaves; of AMD's, ROCR_VISIBLE_DEVICES and then HIP's."""
    environ = os.environ if environ is None else environ
    for name in visibility_variables(gpus, environ):
        gpus = _left_by(environ[name], gpus)
    return gpus


def visibility_variables(gpus: list[Gpu], environ: Mapping[str, str]) -> list[str]:
    """The variables that are set and choose among these GPUs; each counts what those before it have left."""
    if not any(gpu.vendor == "amd" for gpu in gpus):
        return [name for name in ("CUDA_VISIBLE_DEVICES",) if name in environ]
    names = [name for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in environ]
    # HIP takes CUDA's variable where its own is not set; a copy of ROCr's is not meant as a second choice.
    cuda = environ.get("CUDA_VISIBLE_DEVICES")
    if "HIP_VISIBLE_DEVICES" not in names and cuda not in (None, environ.get("ROCR_VISIBLE_DEVICES")):
        names.append("CUDA_VISIBLE_DEVICES")
    return names


def _left_by(asked: str, gpus: list[Gpu]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for word in (word.strip() for word in asked.split(",")):
        found = find(word, gpus)
        if len(found) != 1:
            break  # as CUDA does: the first name that means no GPU, or several, ends the list
        chosen += found
    return chosen


def find(word: str, gpus: list[Gpu]) -> list[Gpu]:
    """The GPUs that a number, a UUID or the beginning of a UUID means."""
    if not word:
        return []
    if word.isdecimal():
        # CUDA counts the GPUs that it may use; of a GPU with MIG slices it uses the first slice.
        cards = dict.fromkeys(gpu.index for gpu in gpus)
        return [gpu for gpu in gpus if gpu.index in list(cards)[int(word) :][:1]][:1]
    exact = [gpu for gpu in gpus if word in (gpu.number, gpu.uuid)]
    return exact or [gpu for gpu in gpus if gpu.uuid.startswith(word)]


def _at(nvml: Any, index: int) -> list[Gpu]:
    """The GPU, or its MIG slices: with MIG on, CUDA computes on slices alone."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    whole = _gpu(nvml, handle, index)
    mode = _value_or_none(lambda: nvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        return [whole]
    slices = []
    for number in range(_value_or_none(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0):
        part = _value_or_none(lambda number=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))  # type: ignore[misc]
        if part is not None:
            slices.append(_gpu(nvml, part, index, number, whole.bus_id))
    return slices


def _gpu(nvml: Any, handle: Any, index: int, part: int | None = None, bus_id: str = "") -> Gpu:
    memory = _value_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))  # unified memory has none
    rates = _value_or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    bus = _value_or_none(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        0 if memory is None else int(memory.used),
        0 if memory is None else int(memory.total),
        bus_id=_text(bus) if bus else bus_id,
        utilisation=None if rates is None else int(rates.gpu),
        processes=_processes(nvml, handle),
        slice=part,
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found = _value_or_none(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return tuple(GpuProcess(int(p.pid), owner_of(int(p.pid)), _bytes(p.usedGpuMemory)) for p in found)


def _value_or_none(ask: Callable[[], T]) -> T | None:
    """The value of a query; None if the GPU or driver does not support it (MIG, vGPU, consumer cards)."""
    try:
        return ask()
    except Exception:
        return None


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
