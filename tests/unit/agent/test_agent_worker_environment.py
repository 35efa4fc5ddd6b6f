"""What the agent adds to a rank's environment about GPUs."""

from __future__ import annotations

import pytest

from dist_train.agent.workers.worker_environment import gpu_environ


@pytest.mark.parametrize(
    ("environ", "device", "added"),
    [
        ({}, "cpu", {}),
        ({}, "cuda", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "cuda", {}),  # the user's own word
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "cuda", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (
            {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"},
            "cuda",
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-b"},
        ),
    ],
)
def test_rank_1(environ: dict[str, str], device: str, added: dict[str, str]) -> None:
    assert gpu_environ(environ, device, local_rank=1) == added
