"""Checkpoints of a training on a GPU: replicas are compared there; the host waits for all of them once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state.device_digest import PIECE_BYTES, digests

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


def tensors() -> dict[str, torch.Tensor]:
    """Of each kind one, on the host."""
    torch.manual_seed(0)
    rows = torch.randn(129, 65)
    return {
        "float32": rows,
        "bfloat16": rows.to(torch.bfloat16),
        "float8": rows.to(torch.float8_e4m3fn),
        "complex128": torch.complex(rows.double(), -rows.double()),
        "conjugate": torch.complex(rows, rows).conj(),
        "bool": rows > 0,
        "int64": torch.randint(-(2**62), 2**62, (13,)),
        "transposed": rows.T,
        "not aligned": rows.to(torch.bfloat16).view(-1)[1:],
        "number": torch.tensor(1.5),
        "none": torch.empty(0, 3),
        "two pieces": torch.randn(PIECE_BYTES // 4 + 3),
    }


def there(tensor: torch.Tensor) -> torch.Tensor:
    """On the GPU in the same form: a view of a tensor is a view of its copy."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.to(DEVICE)
    return tensor.T.contiguous().to(DEVICE).T


def test_the_digest_of_a_gpu_is_that_of_the_host() -> None:
    given = tensors()
    assert digests({name: there(tensor) for name, tensor in given.items()}) == digests(given)


def test_all_tensors_together_are_waited_for_once() -> None:
    given = {name: there(tensor) for name, tensor in tensors().items()}
    digests(given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            digests(given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([one for one in caught if "synchronizing" in str(one.message)]) == 1


def test_what_is_saved_from_a_gpu_comes_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4, device=DEVICE)).square().sum().backward()
    optimizer.step()
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    saved = CheckpointManager(tmp_path).save(1, state)
    with torch.no_grad():
        model[0].weight.zero_()
    restored = CheckpointManager(tmp_path).load_latest(state)
    assert restored is not None
    assert CheckpointManager(tmp_path / "again").save(1, state).weights_hash == saved.weights_hash


def test_what_is_changed_after_start_save_is_not_saved(tmp_path: Path) -> None:
    """The copies of a save in the background are in pinned memory, and made before the call returns."""
    given = {name: there(tensor) for name, tensor in tensors().items() if name != "conjugate"}
    state = {"given": given, "large": torch.arange(16 << 20, device=DEVICE)}
    expected = CheckpointManager(tmp_path / "waits").save(1, state)
    saves = CheckpointManager(tmp_path / "goes on")
    for step in (1, 2):
        saves.start_save(step, state)
        assert saves._background.buffer._block.is_pinned()
        if step == 2:
            for tensor in (*given.values(), state["large"]):
                tensor.zero_()
    committed = saves.wait()
    assert committed is not None
    assert committed.state_hash == expected.state_hash
