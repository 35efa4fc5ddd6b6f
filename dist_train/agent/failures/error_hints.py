"""Hints for common errors, most of torch about devices and memory: one line of advice for each.

Called in the rank that failed, while the exception still has its frames: the facts in the line (which
tensor, how many GPUs, how large /dev/shm is) are those of that process.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import traceback
from collections.abc import Callable

from dist_train.agent.failures import device_mismatch
from dist_train.jobs.device_names import UNSUPPORTED_DEVICES, nearest_device_name, visible_names
from dist_train.jobs.gpus import inventory
from dist_train.jobs.machine import shared_memory_bytes, usable_memory
from dist_train.rundir.format_amounts import size

ErrorHint = Callable[[BaseException, "re.Match[str]"], str]


def hint_for(error: BaseException) -> str | None:
    """Return the hint for an error that the table knows, else None; never raises."""
    try:
        # With the types: a MemoryError often has no text.
        text = "\n".join(f"{type(each).__name__}: {each}" for each in _chain(error))
        for pattern, hint in TABLE:
            if found := re.search(pattern, text):
                return hint(error, found) or None
    except Exception:
        return None  # the user's error must be reported, whatever goes wrong here
    return None


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return the error and its causes."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _other_device(error: BaseException, found: re.Match[str]) -> str:
    general = "batch = dt.to_device(batch, run.device) moves a batch, dt.prepare(model) a model"
    return device_mismatch.explain(error) or general


def _device_string(error: BaseException, found: re.Match[str]) -> str:
    wrong = (found.group("device") or "").strip()
    return f"did you mean {nearest_device_name(wrong)!r}? run.device is this rank's own"


def _ordinal(error: BaseException, found: re.Match[str]) -> str:
    torch = sys.modules.get("torch")
    count = torch.cuda.device_count() if torch is not None else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    hip = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    others = "".join(f", {name}={os.environ[name]}" for name in hip if name in os.environ)
    return (
        f"{count} GPU(s) are visible to this process ({visible_names(count)}; "
        f"CUDA_VISIBLE_DEVICES={visible}{others}): they are numbered from 0 again, so use run.device; "
        "`dist-train devices` shows both numbers"
    )


def _no_gpu(error: BaseException, found: re.Match[str]) -> str:
    return "this process has no GPU: x.to(run.device) in place of .cuda(), and --device cpu to ask for it"


def _no_amd_gpu(error: BaseException, found: re.Match[str]) -> str:
    if (reason := inventory().reason) is not None:
        return f"{reason}; or --device cpu"
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    chosen = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    return (
        f"HIP sees no GPU ({chosen or 'no variable hides one'}): HIP_VISIBLE_DEVICES, else "
        "CUDA_VISIBLE_DEVICES, counts from 0 among those that ROCR_VISIBLE_DEVICES leaves; unset it, or "
        "--device cpu"
    )


def _other_architecture(error: BaseException, found: re.Match[str]) -> str:
    return (
        "this torch has no kernels for this AMD GPU (`rocminfo | grep gfx` names its architecture, "
        "torch.cuda.get_arch_list() those of torch): install a build that has it"
    )


def _unsupported_accelerator(error: BaseException, found: re.Match[str]) -> str:
    return f"{UNSUPPORTED_DEVICES}: x.to(run.device)"


def _worker_killed(error: BaseException, found: re.Match[str]) -> str:
    return (
        f"out of memory, or of /dev/shm ({_shm()}; {size(usable_memory().amount)} of memory may be used): "
        f"fewer workers (data.workers, workers= of dt.loader), or {_MORE_SHM}"
    )


def _shm_full(error: BaseException, found: re.Match[str]) -> str:
    return f"/dev/shm is full ({_shm()}): {_MORE_SHM}, or fewer workers (data.workers, workers= of dt.loader)"


def _saved_elsewhere(error: BaseException, found: re.Match[str]) -> str:
    return 'torch.load(path, map_location="cpu"); dt.checkpoint.load_model(path, model) does it by itself'


def _one_card(error: BaseException, found: re.Match[str]) -> str:
    return (
        "NCCL wants a card for each rank (MIG slices of one card do not count): `dist-train devices` lists "
        "them, --gpus and --gpus-per-node choose"
    )


def _fork(error: BaseException, found: re.Match[str]) -> str:
    return "a loader worker must not touch the GPU: move batches in the loop, or start them by spawn"


def _out_of_memory(error: BaseException, found: re.Match[str]) -> str:
    return (
        "smaller micro-batches with the same result: trainer.accumulate=2 (or a smaller batch); "
        "`dist-train devices` shows who else uses the GPU"
    )


def _no_memory(error: BaseException, found: re.Match[str]) -> str:
    usable = usable_memory()
    facts = [f"{size(usable.amount)} may be used: {usable.reason}"]
    facts += [
        f"`ulimit {option}` allows this process {size(limit)}"
        for option, kind in (("-v", resource.RLIMIT_AS), ("-d", resource.RLIMIT_DATA))
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return (
        f"no memory left on the CPU ({'; '.join(facts)}): smaller batches (trainer.accumulate), fewer loader "
        "workers or ranks per node, or more with --mem, where a cluster sets the limit"
    )


def _one_value_per_channel(error: BaseException, found: re.Match[str]) -> str:
    return (
        "a rank's micro-batch had one sample, and BatchNorm needs two: drop_last=True of dt.loader "
        "(data.drop_last) leaves out a small last step; else batch_size >= 2 x ranks x micro-batches"
    )


def _exchange_of_buffers(error: BaseException, found: re.Match[str]) -> str:
    """For a time-out in a forward pass of DistributedDataParallel only."""
    frames = [frame for each in _chain(error) for frame, _ in traceback.walk_tb(each.__traceback__)]
    if not any(frame.f_code.co_name == "_sync_buffers" for frame in frames):
        return ""
    return (
        "DDP exchanges buffers (BatchNorm's) in a forward pass, and another rank made none: evaluate over "
        "dt.loader(…, evaluation=True), where the ranks may have unlike numbers of batches, or call "
        "dt.unwrap(model)"
    )


def _no_stdin(error: BaseException, found: re.Match[str]) -> str:
    return "a rank has no stdin, on any launcher: hand it over as an option, --env or --secret"


_MORE_SHM = "a larger /dev/shm (docker run --shm-size=8g, --shm 8Gi on Kubernetes)"


def _shm() -> str:
    total = shared_memory_bytes()
    return "there is none" if total is None else f"{size(total)} in all"


# The first pattern that the text of the error (or of its causes) matches gives the hint.
def _sync_batch_norm(error: BaseException, found: re.Match[str]) -> str:
    return (
        "torch has SyncBatchNorm for GPUs alone: convert_sync_batchnorm only where run.device is one; "
        "on CPU nn.GroupNorm or nn.LayerNorm has no statistics of a batch"
    )


TABLE: tuple[tuple[str, ErrorHint], ...] = (
    (r"Expected all tensors to be on the same device", _other_device),
    (r"is not on the expected device", _other_device),
    (r"Input type \(.*\) and weight type \(.*\) should be the same", _other_device),
    (r"parameters and buffers on device .* but found one of them on", _other_device),
    (r"Invalid device string: '(?P<device>.*)'", _device_string),
    (r"device type at start of device string: (?P<device>.*)", _device_string),
    (r"(?P<device>)Device string must not be empty", _device_string),
    (r"invalid device ordinal", _ordinal),
    (r"Attempting to deserialize object on (a )?CUDA device", _saved_elsewhere),
    (r"Duplicate GPU detected", _one_card),
    (r"No HIP GPUs are available|hipErrorNoDevice|no ROCm-capable device is detected", _no_amd_gpu),
    (r"hipErrorNoBinaryForGpu|HIP error: (invalid device function|no kernel image)", _other_architecture),
    (
        r"Torch not compiled with XPU enabled|PyTorch is not linked with support for mps",
        _unsupported_accelerator,
    ),
    (r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available", _no_gpu),
    (r"Cannot re-initialize CUDA in forked subprocess", _fork),
    (r"DataLoader worker \(pid.*\) is killed by signal: Bus error", _shm_full),
    (r"unable to (allocate|write to|open|mmap|resize).*(/torch_|shared memory)", _shm_full),
    (r"shared memory segment /dev/shm/nccl", _shm_full),
    (r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)", _worker_killed),
    (r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory", _out_of_memory),
    (r"Cannot allocate memory|DefaultCPUAllocator: (can't allocate|not enough) memory", _no_memory),
    (r"(?m)^(\w+: )?_?(Array)?MemoryError\b", _no_memory),
    (r"EOF when reading a line", _no_stdin),
    (r"Application timeout caused pair closure|Timed out waiting \d+ms", _exchange_of_buffers),
    (r"Expected more than 1 value per channel when training", _one_value_per_channel),
    (r"SyncBatchNorm expected input tensor to be on GPU", _sync_batch_norm),
)
