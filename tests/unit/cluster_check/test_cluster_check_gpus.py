"""NVML's answers as facts. The driver is a stand-in with answers as an H100 gives them: none is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dist_train.cluster_check.gpu_state import gpu_facts
from dist_train.jobs.gpus import Gpu, GpuProcess

GIB = 1 << 30
GPU = Gpu(3, "GPU-d", "NVIDIA H100 80GB HBM3", 0, 80 * GIB, processes=(GpuProcess(17, "ann", 5 * GIB),))


class RecordedNvml:
    """Answers of NVML 12 for one card; a query that is not among them is `Not Supported`."""

    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY, NVML_NVLINK_ERROR_DL_CRC_FLIT = 0, 1, 2
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"handle {index}"

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            if name.startswith("nvmlDeviceGet") and "ClocksEvent" not in name:
                return self._unsupported
            raise AttributeError(name)
        answer = self.answers[name]
        return answer if callable(answer) else lambda *_: answer

    def _unsupported(self, *_: Any) -> Any:
        raise RuntimeError("Not Supported")


def link_state(handle: str, number: int) -> int:
    if number >= 4:
        raise RuntimeError("Invalid Argument")
    return 0 if number == 2 else 1


def test_all_that_a_card_tells() -> None:
    rate = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))
    found = gpu_facts(
        RecordedNvml(
            nvmlDeviceGetEccMode=(1, 1),
            nvmlDeviceGetTotalEccErrors=2,
            nvmlDeviceGetRemappedRows=(0, 1, 1, 0),
            nvmlDeviceGetTemperature=88,
            nvmlDeviceGetCurrentClocksEventReasons=0x8 | 0x1 | 0x40,
            nvmlDeviceGetComputeMode=0,
            nvmlDeviceGetMaxPcieLinkGeneration=5,
            nvmlDeviceGetCurrPcieLinkWidth=8,
            nvmlDeviceGetMaxPcieLinkWidth=16,
            nvmlDeviceGetNvLinkState=link_state,
            nvmlDeviceGetFieldValues=[rate],
            nvmlDeviceGetNvLinkErrorCounter=lambda handle, number, kind: 5 if (number, kind) == (1, 2) else 0,
        ),
        GPU,
    )
    assert (found.number, found.uuid, found.memory_total) == ("3", "GPU-d", 80 * GIB)
    assert found.others_memory == 5 * GIB
    assert (found.ecc, found.uncorrected_ecc) == (True, 2)
    assert (found.remap_pending, found.remap_failed) == (True, False)
    assert (found.temperature, found.slowdowns) == (88, ("hardware slowdown", "heat (hardware)"))
    assert (found.pcie_generation, found.pcie_width, found.pcie_width_most) == (5, 8, 16)
    assert [one.active for one in found.nvlinks] == [True, True, False, True]
    assert [one.errors for one in found.nvlinks] == [0, 5, None, 0]
    assert found.nvlinks[0].rate == 26562e6
    assert found.prohibited is False


def test_a_card_that_tells_nothing_more() -> None:
    """Consumer cards and vGPUs answer `Not Supported` to most of it."""
    found = gpu_facts(RecordedNvml(), GPU)
    assert (found.ecc, found.uncorrected_ecc, found.remap_failed, found.nvlinks) == (None, None, None, ())
    assert (found.slowdowns, found.prohibited) == ((), False)


def test_an_older_library_has_another_name_for_the_reasons() -> None:
    old = RecordedNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    assert gpu_facts(old, GPU).slowdowns == ("heat",)
