"""AMD's GPUs by the kernel's files, and what the three variables leave of them. No GPU is here."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest
from fake_kfd import GIB, amd_machine

from dist_train.jobs import gpus
from dist_train.jobs.amd_gpus import amd_inventory
from dist_train.jobs.cores.cpu_topology import Core, numa_node_of_gpu
from dist_train.jobs.gpu_environment import environ_of
from dist_train.jobs.gpu_selection import choose_gpus
from dist_train.jobs.gpus import Gpu, GpuProcess, Inventory, inventory, visible_among
from dist_train.jobs.torch_build import hip_version_of

IDS = [0x9A7E8F2900AD2D0A, 0x1B, 0x2C, 0x3D]
CARDS = [Gpu(i, f"GPU-{letter * 16}", "MI250X", 0, 64, vendor="amd") for i, letter in enumerate("abcd")]


def test_each_gpu_with_its_memory_load_and_processes(tmp_path: Path) -> None:
    root = amd_machine(tmp_path, [*IDS[:2], 0])
    (root / "sys/class/drm/renderD129/device/product_name").write_text("AMD Instinct MI250X\n")
    for pid, used in ((os.getpid(), 3 * GIB), (999_999_999, 0)):
        folder = root / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "vram_51001").write_text(f"{used}\n")
    first, second, third = amd_inventory(root).gpus
    assert (first.index, first.uuid, first.name) == (0, "GPU-9a7e8f2900ad2d0a", "AMD gfx90a")
    assert (first.bus_id, first.vendor, first.processes) == ("0000:c1:00.0", "amd", ())
    assert (second.name, second.memory_used, second.memory_total) == ("AMD Instinct MI250X", GIB, 128 * GIB)
    assert (second.utilisation, second.uuid) == (10, "GPU-000000000000001b")
    assert second.processes == (GpuProcess(os.getpid(), getpass.getuser(), 3 * GIB),)
    assert third.uuid == "2", "a card without an id goes by its number"


def test_gpus_of_another_job_are_left_out_and_not_counted(tmp_path: Path) -> None:
    """The control group of a job forbids them, and ROCm counts the others from 0."""
    found = amd_inventory(amd_machine(tmp_path, IDS, forbidden=(0, 2)))
    assert [(gpu.index, gpu.uuid[-2:]) for gpu in found.gpus] == [(0, "1b"), (1, "3d")]
    assert found.left_out == tuple(f"KFD node {n}: not of this job, or without permission" for n in (2, 4))
    none = amd_inventory(amd_machine(tmp_path / "b", IDS[:1], forbidden=(0,)))
    assert "lists none that can be used (KFD node 2: not of this job" in str(none.reason)


def test_the_reasons_for_no_gpu(tmp_path: Path) -> None:
    assert amd_inventory(tmp_path).reason == "AMD's driver lists no GPU (/sys/class/kfd)"
    root = amd_machine(tmp_path / "container", IDS)
    (root / "dev/kfd").unlink()
    found = amd_inventory(root)
    assert (found.gpus, "--device /dev/kfd --device /dev/dri" in str(found.reason)) == ((), True)


def test_a_device_that_this_user_may_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "must be in the group render" in str(amd_inventory(amd_machine(tmp_path, IDS)).reason)


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, "abcd"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, "db"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-cccccccccccccccc,0"}, "ca"),
        ({"HIP_VISIBLE_DEVICES": "1,2"}, "bc"),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, "bc"),  # HIP reads it, too
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1,2"}, "d"),  # its own comes first
        # HIP counts what ROCr has left: LUMI's container recipes, issue 13.
        ({"ROCR_VISIBLE_DEVICES": "0,3", "HIP_VISIBLE_DEVICES": "1"}, "d"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}, ""),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, "d"),
        # One list in both: Slurm without AutoDetect. Our agent undoes the second choice.
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, "cd"),
    ],
)
def test_what_the_variables_leave(environ: dict[str, str], left: str) -> None:
    assert [gpu.uuid[4] for gpu in visible_among(CARDS, environ)] == list(left)


def test_on_nvidia_the_variables_of_amd_mean_nothing() -> None:
    cards = [Gpu(i, f"GPU-{i}", "H100", 0, 80) for i in range(2)]
    assert visible_among(cards, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}) == cards


def test_the_chosen_ones_stay_the_chosen_ones_whatever_was_inherited() -> None:
    chosen = choose_gpus("3,1", CARDS, 2)
    environ = environ_of([gpu.uuid for gpu in chosen], "amd")
    assert environ == {
        "ROCR_VISIBLE_DEVICES": "GPU-dddddddddddddddd,GPU-bbbbbbbbbbbbbbbb",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    inherited = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "3"}
    assert visible_among(CARDS, {**inherited, **environ}) == chosen
    assert environ_of(["GPU-1"], "nvidia") == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_the_numa_node_of_an_amd_gpu(tmp_path: Path) -> None:
    root = amd_machine(tmp_path, IDS)
    card = root / "sys/bus/pci/devices/0000:c2:00.0"
    card.mkdir(parents=True)
    (card / "numa_node").write_text("3\n")
    cores = [Core(node, (node,)) for node in range(4)]
    assert [numa_node_of_gpu(gpu.bus_id, cores, root) for gpu in amd_inventory(root).gpus[:2]] == [None, 3]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", "6.4.43482"),
        ("__all__ = ['hip']\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", None),
        ("hip = '5.7'\n", "5.7"),
        (None, None),
    ],
)
def test_torchs_build_is_read_without_importing_it(
    tmp_path: Path, text: str | None, version: str | None
) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    assert hip_version_of(tmp_path / "version.py") == version


def test_torchs_build_decides_whose_gpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop's AMD GPU is none for a torch that is built for the CPU or for CUDA."""
    monkeypatch.setattr(gpus, "amd_inventory", lambda: Inventory(tuple(CARDS)))
    monkeypatch.setattr(gpus, "_nvidia_inventory", lambda: Inventory(reason="no driver"))
    monkeypatch.setattr(gpus, "hip_version", lambda: None)
    found = inventory()
    assert found.gpus == ()
    assert found.reason == "no driver; 4 AMD GPU(s) are here, and this torch is not built for ROCm"
    monkeypatch.setattr(gpus, "hip_version", lambda: "6.4")
    assert inventory().gpus == tuple(CARDS)
