"""NOT AMD's driver: folders with the files of /sys and /dev that describe AMD's GPUs, as KFD writes them."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30


def amd_machine(root: Path, unique_ids: list[int], forbidden: tuple[int, ...] = ()) -> Path:
    """Write two sockets (KFD nodes 0 and 1) and a GPU of 128 GiB for each id (nodes 2, 3, …).

    Args:
        unique_ids: 0 for a consumer card, which has none.
        forbidden: GPUs of which the kernel shows no properties: another job's.
    """
    for node in (0, 1):
        _write(root, f"class/kfd/kfd/topology/nodes/{node}/gpu_id", "0")
        _write(root, f"class/kfd/kfd/topology/nodes/{node}/properties", "cpu_cores_count 64\nsimd_count 0")
    for index, unique in enumerate(unique_ids):
        folder = f"class/kfd/kfd/topology/nodes/{index + 2}"
        minor, bus = 128 + index, 0xC1 + index
        _write(root, f"{folder}/gpu_id", str(51000 + index))
        facts = {"simd_count": 440, "gfx_target_version": 90010, "location_id": bus << 8, "domain": 0}
        facts |= {"drm_render_minor": minor, "unique_id": unique}
        lines = "" if index in forbidden else "\n".join(f"{name} {value}" for name, value in facts.items())
        _write(root, f"{folder}/properties", lines)
        card = f"class/drm/renderD{minor}/device"
        _write(root, f"{card}/mem_info_vram_total", str(128 * GIB))
        _write(root, f"{card}/mem_info_vram_used", str(index * GIB))
        _write(root, f"{card}/gpu_busy_percent", str(10 * index))
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kfd").touch()
    return root


def _write(root: Path, name: str, text: str) -> None:
    path = root / "sys" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
