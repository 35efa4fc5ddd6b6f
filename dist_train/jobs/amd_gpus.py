"""AMD's GPUs, as the kernel's driver (KFD) lists them in /sys: without ROCm's libraries.

In the order of KFD's nodes, which is that of ROCm: its numbers count the GPUs that this process may use.
"""

from __future__ import annotations

import os
from pathlib import Path

from dist_train.jobs.gpu_records import Gpu, GpuProcess, Inventory, owner_of

_NODES = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_DEVICE = "dev/kfd"


def amd_inventory(root: Path = Path("/")) -> Inventory:
    """Every AMD GPU that this process may use, or the reason why there are none."""
    gpus: list[Gpu] = []
    left_out: list[str] = []
    for node in _node_numbers(root):
        folder = root / _NODES / str(node)
        gpu_id = _text(folder / "gpu_id")
        if gpu_id == "0":
            continue  # a CPU
        facts = _properties(folder / "properties")
        if not facts or not gpu_id:
            # The kernel lists what a control group forbids, and does not describe it.
            left_out.append(f"KFD node {node}: not of this job, or without permission")
            continue
        gpus.append(_gpu(len(gpus), facts, gpu_id, root))
    if gpus and (denied := _denied(root)) is not None:
        return Inventory((), denied, tuple(left_out))
    why = (
        f"lists none that can be used ({'; '.join(left_out)})"
        if left_out
        else "lists no GPU (/sys/class/kfd)"
    )
    return Inventory(tuple(gpus), None if gpus else f"AMD's driver {why}", tuple(left_out))


def _denied(root: Path) -> str | None:
    device = root / _DEVICE
    if not device.exists():
        return (
            "AMD's GPUs are here, and /dev/kfd is not: a container needs --device /dev/kfd --device /dev/dri"
        )
    if not os.access(device, os.R_OK | os.W_OK):
        return "AMD's GPUs are here, and this user may not open /dev/kfd: it must be in the group render"
    return None


def _node_numbers(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / _NODES).glob("*") if path.name.isdigit())


def _gpu(index: int, facts: dict[str, int], gpu_id: str, root: Path) -> Gpu:
    card = root / f"sys/class/drm/renderD{facts.get('drm_render_minor', 0)}/device"
    unique = facts.get("unique_id", 0)
    return Gpu(
        index,
        # As ROCR_VISIBLE_DEVICES takes it; consumer cards have no unique id, and go by their number.
        f"GPU-{unique:016x}" if unique else str(index),
        _text(card / "product_name") or _architecture(facts.get("gfx_target_version", 0)),
        _number(card / "mem_info_vram_used") or 0,
        _number(card / "mem_info_vram_total") or 0,
        bus_id=_bus_id(facts),
        utilisation=_number(card / "gpu_busy_percent"),
        processes=_processes(gpu_id, root),
        vendor="amd",
    )


def _bus_id(facts: dict[str, int]) -> str:
    place = facts.get("location_id", 0)
    return f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _architecture(version: int) -> str:
    """90402 -> gfx942, 90010 -> gfx90a."""
    return f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _processes(gpu_id: str, root: Path) -> tuple[GpuProcess, ...]:
    found = []
    for file in (root / _PROCESSES).glob(f"*/vram_{gpu_id}"):
        used = _number(file)
        if used and file.parent.name.isdigit():
            pid = int(file.parent.name)
            found.append(GpuProcess(pid, owner_of(pid), used))
    return tuple(sorted(found, key=lambda process: process.pid))


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
