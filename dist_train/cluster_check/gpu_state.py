"""GPUs by NVML: ECC, NVLink, clocks, memory that others hold. Not seen on AMD's, which NVML does not know."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from dist_train.doctor.facts import GpuFacts, NvLink
from dist_train.jobs.gpu_records import Gpu

T = TypeVar("T")
_MOST_LINKS = 18  # of an H100; NVML answers the others with an error
# Reasons why a clock is held down that are faults: not idle, nor a clock or power limit that was set.
_SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


def read_gpus(gpus: list[Gpu]) -> tuple[GpuFacts, ...]:
    """The state of these GPUs; what NVML does not tell is None."""
    if not any(gpu.vendor == "nvidia" for gpu in gpus):
        return tuple(_bare(gpu) for gpu in gpus)
    import pynvml

    pynvml.nvmlInit()
    try:
        return tuple(gpu_facts(pynvml, gpu) for gpu in gpus)
    finally:
        pynvml.nvmlShutdown()


def driver_versions() -> dict[str, str]:
    """The NVIDIA driver, and the newest CUDA that it knows; empty without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver: the inventory has the reason
        return {}
    try:
        newest = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "CUDA of the driver": f"{newest // 1000}.{newest % 1000 // 10}",
        }
    except Exception:  # a driver too old for the query: what is not known is left out
        return {}
    finally:
        pynvml.nvmlShutdown()


def _bare(gpu: Gpu) -> GpuFacts:
    return GpuFacts(number=gpu.number, uuid=gpu.uuid, name=gpu.name, memory_total=gpu.memory_total)


def gpu_facts(nvml: Any, gpu: Gpu) -> GpuFacts:
    """Ask NVML for all that it tells of one GPU; of a MIG slice, what it tells of the card."""
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    ecc = _ask(lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    rows = _ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))  # corrected, uncorrected, pending, failed
    retired = _ask(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    reasons = _ask(lambda: int(_clock_reasons(nvml, handle))) or 0
    own = {os.getpid()}
    return _bare(gpu).model_copy(
        update={
            "others_memory": sum(p.memory_used or 0 for p in gpu.processes if p.pid not in own),
            "ecc": None if ecc is None else bool(ecc),
            "uncorrected_ecc": _ask(lambda: int(_uncorrected(nvml, handle))),
            "remap_pending": _either(None if rows is None else rows[2], retired),
            "remap_failed": None if rows is None else bool(rows[3]),
            "temperature": _ask(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            "slowdowns": tuple(text for bit, text in _SLOWDOWNS.items() if reasons & bit),
            "prohibited": _ask(lambda: nvml.nvmlDeviceGetComputeMode(handle))
            == nvml.NVML_COMPUTEMODE_PROHIBITED,
            # That of a card at rest is lower: what it can do is what counts.
            "pcie_generation": _ask(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
            "pcie_width": _ask(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
            "pcie_width_most": _ask(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
            "nvlinks": tuple(_links(nvml, handle)),
        }
    )


def _clock_reasons(nvml: Any, handle: Any) -> Any:
    """NVML has renamed the query; libraries before 12.535 know the old name alone."""
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return (ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)


def _uncorrected(nvml: Any, handle: Any) -> int:
    return int(
        nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )


def _either(*states: Any) -> bool | None:
    known = [bool(state) for state in states if state is not None]
    return any(known) if known else None


def _links(nvml: Any, handle: Any) -> list[NvLink]:
    rate = _ask(lambda: _link_rate(nvml, handle))
    links = []
    for number in range(_MOST_LINKS):
        state = _ask(lambda number=number: nvml.nvmlDeviceGetNvLinkState(handle, number))  # type: ignore[misc]
        if state is None:
            break
        active = bool(state)
        links.append(
            NvLink(
                number=number,
                active=active,
                rate=rate if active else None,
                errors=_errors(nvml, handle, number) if active else None,
            )
        )
    return links


def _link_rate(nvml: Any, handle: Any) -> float | None:
    """Bytes per second of one link, the same of all that are up."""
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return None if field.nvmlReturn else float(field.value.uiVal) * 1e6 or None


def _errors(nvml: Any, handle: Any, number: int) -> int | None:
    kinds = (
        nvml.NVML_NVLINK_ERROR_DL_REPLAY,
        nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    )
    counts = [
        _ask(lambda kind=kind: int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, number, kind)))  # type: ignore[misc]
        for kind in kinds
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _ask(query: Callable[[], T]) -> T | None:
    """The answer; None where the card or the driver does not support the query."""
    try:
        return query()
    except Exception:  # NVMLError, or a struct that this pynvml and driver do not share
        return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
