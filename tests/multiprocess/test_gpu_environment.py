"""The ranks' environment names their GPUs by UUID. The driver is a fake with two GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof]

# NOT NVIDIA's library.
PYNVML = """
from types import SimpleNamespace
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(gpu): return SimpleNamespace(used=(30 << 30) - (gpu << 30), total=80 << 30)
def nvmlDeviceGetUUID(gpu): return f"GPU-{'ab'[gpu]}"
def nvmlDeviceGetName(gpu): return "Pretend"
"""
SCRIPT = """
import os, pathlib, torch
assert not torch.cuda.is_initialized()
names = "RANK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "DIST_TRAIN_DEVICE"
words = " ".join(os.environ[name] for name in names)
pathlib.Path(f"seen-{os.environ['RANK']}").write_text(words)
"""


@pytest.mark.proves(
    "`--gpus` reaches the workers as UUIDs, each simulated node its own",
    limits="a stand-in for the driver, no GPU",
)
def test_two_simulated_nodes_get_a_gpu_each(tmp_path: Path) -> None:
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "pynvml.py").write_text(PYNVML)
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environ["PYTHONPATH"] = str(tmp_path / "stand_in")
    cli = launch_cli(
        ["launch", "--nodes", "2", "--gpus", "auto", "train.py"], cwd=tmp_path, env=environ, timeout_s=60
    )
    assert cli.code == 0, cli
    assert "--gpus auto, least used first: GPU 1 (0 processes, 36 % of memory); GPU 0" in cli.stderr
    seen = [(tmp_path / f"seen-{rank}").read_text() for rank in range(2)]
    assert seen == ["0 GPU-b PCI_BUS_ID cuda", "1 GPU-a PCI_BUS_ID cuda"]
