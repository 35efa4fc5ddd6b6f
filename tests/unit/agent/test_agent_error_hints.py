"""Common errors, each with the text of its hint: raised by torch itself where a CPU can
(`meta` stands for the other device), else with the text that torch has in its sources."""

from __future__ import annotations

import mmap
import re
import resource
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from dist_train.agent.failures import device_mismatch, error_hints
from dist_train.agent.failures.error_hints import TABLE, hint_for
from dist_train.jobs.gpus import Inventory

META = torch.device("meta")
Situation = Callable[[], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1)
        self.scale: Any = None

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = self.body(batch["image"])
        if self.scale is not None:
            hidden = hidden * self.scale
        return self.head(hidden)


def part_left_behind() -> Any:
    model = Net().to(META)
    model.head.to_empty(device="cpu")
    return model({"image": torch.zeros(1, 2, device=META)})


def batch_left_behind() -> Any:
    return Net().to(META)({"image": torch.zeros(1, 2)})


def batch_left_behind_of_a_wrapped_model() -> Any:
    with torch.compiler.set_stance("force_eager"):  # the wrapper's frames without a compiler's seconds
        return nn.DataParallel(torch.compile(Net().to(META), backend="eager"))({"image": torch.zeros(1, 2)})


def plain_attribute() -> Any:
    model = Net()
    model.scale = torch.ones(2, device=META)
    return model({"image": torch.zeros(1, 2)})


def target_left_behind() -> Any:
    output = torch.zeros(3, 2, device=META)
    target = torch.zeros(3, 2)
    return nn.functional.mse_loss(output, target)


def exchange_of_buffers_that_another_rank_never_begins() -> None:
    def _sync_buffers() -> None:  # DistributedDataParallel's, in a forward pass
        raise RuntimeError("[/gloo/transport/tcp/pair.cc] Application timeout caused pair closure")

    _sync_buffers()


@pytest.mark.parametrize(
    ("situation", "hint"),
    [
        (exchange_of_buffers_that_another_rank_never_begins, "evaluate over dt.loader(…, evaluation=True)"),
        (
            part_left_behind,
            "parameter or buffer 'head.weight', 'head.bias' of Net are on cpu, the rest on meta",
        ),
        (batch_left_behind, "argument \"batch['image']\" of Net.forward is on cpu, its parameters on meta"),
        (batch_left_behind_of_a_wrapped_model, "argument \"batch['image']\" of Net.forward is on cpu"),
        (plain_attribute, "attribute 'scale' of Net is on meta, its parameters on cpu: self.register_buffer"),
        (lambda: nn.BatchNorm1d(2)(torch.zeros(1, 2)), "drop_last=True of dt.loader (data.drop_last)"),
        (target_left_behind, "in target_left_behind, 'target' is on cpu, 'output' is on meta"),
        (lambda: torch.device("cuda: 0"), "did you mean 'cuda:0'?"),
        (lambda: torch.zeros(1).to("gpu:1"), "did you mean 'cuda'?"),
        (lambda: torch.zeros(1).to(""), "did you mean 'cuda'?"),
    ],
)
def test_errors_that_torch_raises_here(situation: Situation, hint: str) -> None:
    with pytest.raises(Exception) as raised:
        situation()
    assert hint in str(hint_for(raised.value)), raised.value


@pytest.mark.parametrize(
    ("situation", "text", "hint"),
    [
        (
            "SyncBatchNorm on CPU",
            "ValueError: SyncBatchNorm expected input tensor to be on GPU or XPU or privateuseone",
            "convert_sync_batchnorm only where run.device is one",
        ),
        ("input() in a rank", "EOF when reading a line", "a rank has no stdin"),
        (
            "cpu and cuda",
            "Expected all tensors to be on the same device, but found at least two",
            "dt.to_device",
        ),
        (
            "a float on the CPU, weights on the GPU",
            "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
            "dt.to_device",
        ),
        (
            "cuda:7 of 2",
            "CUDA error: invalid device ordinal",
            "2 GPU(s) are visible to this process (cuda:0 to",
        ),
        ("CPU build", "Torch not compiled with CUDA enabled", "x.to(run.device) in place of .cuda()"),
        ("no driver", "Found no NVIDIA driver on your system.", "x.to(run.device)"),
        ("CUDA_VISIBLE_DEVICES=''", "No CUDA GPUs are available", "--device cpu"),
        (
            "CUDA in a forked worker",
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing",
            "by spawn",
        ),
        (
            "the kernel killed a loader worker",
            "DataLoader worker (pid 17) is killed by signal: Killed. ",
            "out of memory, or of /dev/shm (64.0 MiB in all",
        ),
        ("a loader worker left", "DataLoader worker (pid(s) 17) exited unexpectedly", "data.workers"),
        (
            "Docker's 64 MiB",
            "DataLoader worker (pid 17) is killed by signal: Bus error. It is possible that",
            "/dev/shm is full (64.0 MiB in all): a larger /dev/shm (docker run --shm-size=8g, --shm 8Gi",
        ),
        (
            "a full /dev/shm",
            "unable to write to file </torch_12_3_0>: No space left on device (28)",
            "/dev/shm",
        ),
        (
            "a full /dev/shm, torch 2.13",
            "unable to allocate shared memory(shm) for file </torch_12_3_0>: No space left on device (28)",
            "/dev/shm is full (64.0 MiB",
        ),
        (
            "NCCL and a full /dev/shm",
            "Error while creating shared memory segment /dev/shm/nccl-mYgrVn (size 9637888)",
            "/dev/shm is full (64.0 MiB",
        ),
        (
            "saved on a GPU, loaded without one",
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
            'map_location="cpu"',
        ),
        (
            "saved on the fourth GPU, loaded with one",
            "Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1",
            "dt.checkpoint.load_model(path, model)",
        ),
        (
            "two slices of one card",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
            "NCCL wants a card for each rank",
        ),
        ("a full GPU of AMD", "HIP out of memory. Tried to allocate 2.00 GiB", "trainer.accumulate=2"),
        ("no GPU of AMD", "No HIP GPUs are available", "among those that ROCR_VISIBLE_DEVICES leaves"),
        ("HIP's own words", "HIP error: no ROCm-capable device is detected", "HIP sees no GPU (HIP_VISIBLE"),
        ("an old GPU of AMD", "HIP error: invalid device function", "rocminfo | grep gfx"),
        ("Intel's GPU", "Torch not compiled with XPU enabled", "xpu, mps and hpu are not supported"),
        ("Apple's GPU", "PyTorch is not linked with support for mps devices", "x.to(run.device)"),
        ("a full GPU", "CUDA out of memory. Tried to allocate 2.00 GiB", "trainer.accumulate=2"),
        ("a full GPU, as the driver says it", "CUDA error: out of memory", "trainer.accumulate=2"),
        ("ENOMEM", "[Errno 12] Cannot allocate memory", "no memory left on the CPU"),
        (
            "torch's allocator",
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you",
            "more with --mem",
        ),
        ("Python's own", "MemoryError: ", "no memory left on the CPU ("),
    ],
)
def test_errors_by_their_text(monkeypatch: pytest.MonkeyPatch, situation: str, text: str, hint: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(error_hints, "shared_memory_bytes", lambda: 64 << 20)
    monkeypatch.setattr(error_hints, "inventory", Inventory)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    assert hint in str(hint_for(RuntimeError(text))), situation


@pytest.mark.parametrize(
    "situation",
    [
        "bytearray(8 << 30)",
        "numpy.zeros(1 << 30)",
        "torch.zeros(1 << 31)",
        "mmap.mmap(-1, 8 << 30)",
    ],
)
def test_a_process_with_a_limit_of_its_own_gets_it_in_the_hint(ranks: Any, situation: str) -> None:
    """A real RLIMIT_AS in a process of its own."""

    def hint_of(_: str) -> str | None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        try:
            eval(situation, {"mmap": mmap, "numpy": numpy, "torch": torch})
        except BaseException as error:
            return hint_for(error)
        return "nothing was raised"

    [hint] = ranks(1, hint_of)
    assert "no memory left on the CPU (" in str(hint)
    assert "`ulimit -v` allows this process 6.0 GiB" in str(hint)


def test_the_cause_of_an_error_is_searched_too() -> None:
    error = RuntimeError("the loader failed")
    error.__cause__ = RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed. ")
    assert "/dev/shm" in str(hint_for(error))


def test_every_row_of_the_table_has_a_situation() -> None:
    """A row without a situation above would be untested."""
    above = {name for name in globals() if name.startswith("test_errors_")}
    marks = [mark for name in above for mark in globals()[name].pytestmark if mark.name == "parametrize"]
    texts = [row[1] for mark in marks for row in mark.args[1] if len(row) == 3]
    met = {row[0] for mark in marks for row in mark.args[1] if len(row) == 2}
    for situation in met:
        with pytest.raises(Exception) as raised:
            situation()
        texts.append(str(raised.value))
    unmet = [pattern for pattern, _ in TABLE if not any(re.search(pattern, text) for text in texts)]
    assert unmet == [r"parameters and buffers on device .* but found one of them on"]  # needs two GPUs


def test_other_errors_have_no_hint_and_a_broken_table_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint_for(ValueError("the true cause")) is None
    assert hint_for(RuntimeError("Application timeout caused pair closure")) is None, "not in a forward pass"

    def broken(error: BaseException) -> str:
        raise OSError("no /proc here")

    monkeypatch.setattr(device_mismatch, "explain", broken)
    assert hint_for(RuntimeError("Expected all tensors to be on the same device")) is None


def test_a_model_spread_over_gpus_names_the_part_whose_input_was_not_moved() -> None:
    """The real one needs two GPUs; the tensors here only say where they would be."""

    class Part:
        def __init__(self, name: str, number: int) -> None:
            self.name, self.weight = name, SimpleNamespace(device=torch.device("cuda", number))

        def named_parameters(self) -> Any:
            return [(f"{self.name}.weight", self.weight)]

        def named_buffers(self) -> Any:
            return []

        def forward(self, x: torch.Tensor) -> None: ...

    first, second = Part("a", 0), Part("b", 1)
    model = SimpleNamespace(
        named_parameters=lambda: [*first.named_parameters(), *second.named_parameters()],
        named_buffers=list,
        named_modules=lambda: [("a", first), ("b", second)],
    )
    hidden = torch.zeros(1, device=META)  # stands for cuda:0
    outer: Any = SimpleNamespace(f_locals={"self": model})
    inner: Any = SimpleNamespace(f_locals={"self": second, "args": (hidden,), "kwargs": {}})
    assert device_mismatch._in_model(outer, inner) == (
        "the input of 'b' (Part) is on meta, its parameters on cuda:1: x = x.to('cuda:1') in front of it"
    )
