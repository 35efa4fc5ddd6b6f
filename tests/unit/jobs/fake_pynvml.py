"""NOT NVIDIA's library: a stand-in for `pynvml` with the calls that dist-train makes, where there is no GPU.

What it answers is written down here by hand; no driver has said it.
"""
# ruff: noqa: N802 (the names are NVIDIA's)

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class FakeNvmlError(Exception):
    """As pynvml.NVMLError."""


@dataclass
class FakeGpu:
    """One GPU of the stand-in; a query of None is refused, as old cards and slices refuse it."""

    uuid: str
    used: int = 0
    total: int | None = 80 * GIB
    load: int | None = 0
    pids: tuple[tuple[int, int | None], ...] = ()
    bus: bytes | None = b"00000000:3B:00.0"
    slices: list[FakeGpu] | None = None  # an empty list: MIG is on, and it is not cut
    forbidden: str | None = None  # the driver's word for a card that is counted and not given
    name: str = "Pretend H100"


@dataclass
class FakePynvml:
    """To be put into sys.modules["pynvml"]."""

    gpus: list[FakeGpu]
    fails_with: str | None = None
    open: int = 0

    def nvmlInit(self) -> None:
        if self.fails_with is not None:
            raise FakeNvmlError(self.fails_with)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].forbidden is not None:
            raise FakeNvmlError(self.gpus[index].forbidden)
        return self.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(used=gpu.used, total=_or_refuse(gpu.total))

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()  # bytes in old versions of the library

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=_or_refuse(gpu.load))

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=_or_refuse(gpu.bus))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.pids]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [int(gpu.slices is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if gpu.slices is None or index >= len(gpu.slices):
            raise FakeNvmlError("Not Found")
        return gpu.slices[index]


def _or_refuse(value: Any) -> Any:
    if value is None:
        raise FakeNvmlError("Not Supported")
    return value
