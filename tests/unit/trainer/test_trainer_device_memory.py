"""The line about the GPUs' memory at the end of a training; the figures are made up."""

from __future__ import annotations

import torch

from dist_train.trainer.records.memory_use import DeviceMemory, device_memory, memory_line

GIB = 1 << 30


def test_there_is_no_line_on_a_cpu() -> None:
    assert device_memory(torch.device("cpu")) == []
    assert memory_line([], "ddp") is None


def test_each_gpu_with_its_peak() -> None:
    even = [DeviceMemory(0, 3 * GIB, 80 * GIB), DeviceMemory(1, 3 * GIB, 80 * GIB)]
    assert memory_line(even, "dp") == "peak memory of rank 0: cuda:0 3.0 of 80.0 GiB, cuda:1 3.0 of 80.0 GiB"


def test_a_crowded_first_gpu_of_dp_gets_a_hint() -> None:
    uneven = [DeviceMemory(0, 9 * GIB, 80 * GIB), DeviceMemory(2, 3 * GIB, 80 * GIB)]
    assert "strategy.first_device_batch" in str(memory_line(uneven, "dp"))
    assert "strategy.first_device_batch" not in str(memory_line(uneven, "ddp"))
