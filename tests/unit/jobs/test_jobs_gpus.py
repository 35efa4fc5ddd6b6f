"""GPUs that the driver reports, less those that CUDA_VISIBLE_DEVICES hides. The driver is a stand-in."""

from __future__ import annotations

import getpass
import os
import sys

import pytest
from fake_pynvml import GIB, FakeGpu, FakePynvml

from dist_train.jobs import gpus
from dist_train.jobs.gpus import Gpu, GpuProcess, inventory, visible_gpus

MACHINE = [
    Gpu(i, f"GPU-{letter}", "H100", used, 80)
    for i, (letter, used) in enumerate(zip("abcd", (5, 1, 9, 1), strict=True))
]
SLICED = [
    Gpu(0, "GPU-a", "H100", 0, 80),
    Gpu(1, "MIG-b0", "H100 MIG 1g", 0, 10, slice=0),
    Gpu(1, "MIG-b1", "H100 MIG 1g", 0, 10, slice=1),
]


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-d,GPU-a", [3, 0]),
        ("", []),
        ("1,9,2", [1]),  # as CUDA: the first that does not exist ends the list
        ("1,GPU-,2", [1]),  # and so does one that means several
        ("-1", []),
    ],
)
def test_visible(monkeypatch: pytest.MonkeyPatch, words: str | None, seen: list[int]) -> None:
    monkeypatch.setattr(gpus, "physical_gpus", lambda: list(MACHINE))
    environ = {} if words is None else {"CUDA_VISIBLE_DEVICES": words}
    assert [gpu.index for gpu in visible_gpus(environ)] == seen


@pytest.mark.parametrize(("words", "seen"), [("MIG-b1", ["1:1"]), ("0,MIG-b0", ["0", "1:0"]), ("1", ["1:0"])])
def test_slices_are_named_by_their_own_uuid(
    monkeypatch: pytest.MonkeyPatch, words: str, seen: list[str]
) -> None:
    monkeypatch.setattr(gpus, "physical_gpus", lambda: list(SLICED))
    assert [gpu.number for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": words})] == seen


@pytest.fixture(autouse=True)
def _torch_is_built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "hip_version", lambda: None)
    monkeypatch.setattr(gpus, "amd_inventory", gpus.Inventory)


def pretend(monkeypatch: pytest.MonkeyPatch, *found: FakeGpu, fails_with: str | None = None) -> FakePynvml:
    driver = FakePynvml(list(found), fails_with)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


def test_each_gpu_with_its_load_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpid()
    driver = pretend(
        monkeypatch,
        FakeGpu("GPU-a", used=3 * GIB, load=97, pids=((mine, 2 * GIB), (2**22 + 1, None))),
        FakeGpu("GPU-b", load=None, bus=None),
    )
    first, second = inventory().gpus
    owner = getpass.getuser()
    assert first == Gpu(
        0,
        "GPU-a",
        "Pretend H100",
        3 * GIB,
        80 * GIB,
        bus_id="00000000:3B:00.0",
        utilisation=97,
        # The second one lives outside of this process's container: it has no known owner.
        processes=(GpuProcess(mine, owner, 2 * GIB), GpuProcess(2**22 + 1, "?", None)),
    )
    assert (second.utilisation, second.bus_id, second.processes) == (None, "", ())
    assert driver.open == 0  # closed again


def test_a_gpu_with_mig_is_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [FakeGpu("MIG-x", total=10 * GIB, load=None, bus=None), FakeGpu("MIG-y", total=20 * GIB)]
    pretend(monkeypatch, FakeGpu("GPU-a"), FakeGpu("GPU-b", slices=slices))
    found = inventory().gpus
    assert [(gpu.number, gpu.uuid) for gpu in found] == [("0", "GPU-a"), ("1:0", "MIG-x"), ("1:1", "MIG-y")]
    assert found[1].bus_id == "00000000:3B:00.0"  # of the card that it is a part of
    assert [gpu.memory_total for gpu in found] == [80 * GIB, 10 * GIB, 20 * GIB]


def test_a_gpu_without_permission_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job's control group the driver counts all GPUs, and allows those of the job."""
    pretend(
        monkeypatch,
        FakeGpu("GPU-a", forbidden="Insufficient Permissions"),
        FakeGpu("GPU-b"),
        FakeGpu("GPU-c", forbidden="GPU is lost"),
        FakeGpu("GPU-d"),
    )
    found = inventory()
    assert [gpu.number for gpu in found.gpus] == ["1", "3"]
    assert found.left_out == ("GPU 0: Insufficient Permissions", "GPU 2: GPU is lost")
    # CUDA numbers those that it may use, from 0.
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "1,0"})] == ["GPU-d", "GPU-b"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}) == []


def test_mig_without_a_slice_and_memory_that_the_driver_does_not_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, FakeGpu("GPU-a", slices=[]))
    assert "(GPU 0: MIG is on, and it is not cut into slices)" in str(inventory().reason)
    pretend(monkeypatch, FakeGpu("GPU-a", total=None))  # a GPU that shares the machine's memory
    assert [(gpu.uuid, gpu.memory_total) for gpu in inventory().gpus] == [("GPU-a", 0)]


def test_no_driver_is_a_reason_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, fails_with="NVML Shared Library Not Found")
    assert inventory().reason == "the NVIDIA driver does not answer: NVML Shared Library Not Found"
    pretend(monkeypatch)
    assert inventory().reason == "the NVIDIA driver answers, and knows no GPU"
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert "cannot be imported" in str(inventory().reason)
    assert visible_gpus({}) == []
