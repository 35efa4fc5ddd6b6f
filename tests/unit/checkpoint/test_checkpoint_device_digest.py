"""State is compared where it is: the digest that a device computes, and saves that compare by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from checkpoint_cases import Training, manifest_of

from dist_train.checkpoint.format import hashing
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.format.tensor_bytes import host, view_bytes
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state import device_digest, replicas
from dist_train.checkpoint.state.device_digest import digests
from dist_train.distributed.control_group import Control
from dist_train.testing import run_ranks

MASK = (1 << 64) - 1


def digest(tensor: torch.Tensor) -> str:
    return digests({"x": tensor})["x"]


def by_hand(tensor: torch.Tensor) -> str:
    """The definition, in Python's integers."""
    raw = bytes(view_bytes(host(tensor)))
    total = 0
    for number in range(-(-len(raw) // 8)):
        word = int.from_bytes(raw[8 * number : 8 * number + 8].ljust(8, b"\0"), "little")
        word = (word + (number + 1) * 0x9E3779B97F4A7C15) & MASK
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
        total += word ^ word >> 31
    return f"{total & MASK:016x}"


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    rows = torch.randn(11, 7)
    return {
        "float32": rows,
        "float64": rows.double(),
        "bfloat16": rows.to(torch.bfloat16),
        "float8": rows.to(torch.float8_e5m2),
        "complex64": torch.complex(rows, -rows),
        "complex128": torch.complex(rows.double(), rows.double()),
        "conjugate": torch.complex(rows, -rows).conj(),
        "negative": torch.complex(rows, -rows).conj().imag,
        "bool": rows > 0,
        "int64": torch.randint(-(2**62), 2**62, (13,)),
        "uint16": torch.arange(9).to(torch.uint16),
        "transposed": rows.T,
        "every third": rows[::3, 1::2],
        "not aligned": rows.to(torch.bfloat16).view(-1)[1:60],
        "bytes not aligned": torch.arange(41, dtype=torch.uint8)[3:],
        "number": torch.tensor(-0.0),
        "none": torch.empty(0, 5),
        "expanded": torch.tensor([2.5]).expand(4, 3),
        "parameter": torch.nn.Parameter(rows),
    }


@pytest.mark.parametrize("piece_bytes", [None, 64])
def test_every_kind_of_tensor_in_pieces_of_any_size(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int | None
) -> None:
    if piece_bytes is not None:
        monkeypatch.setattr(device_digest, "PIECE_BYTES", piece_bytes)
    given = tensors()
    assert digests(given) == {name: by_hand(tensor) for name, tensor in given.items()}
    assert digests({}) == {}


def flipped(at: int, bit: int) -> Callable[[torch.Tensor], None]:
    def change(words: torch.Tensor) -> None:
        words[at] ^= torch.tensor(1 << bit if bit < 63 else -(1 << 63))

    return change


def exchanged(first: int, second: int) -> Callable[[torch.Tensor], None]:
    def change(words: torch.Tensor) -> None:
        words[[first, second]] = words[[second, first]]

    return change


def both(*changes: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    def change(words: torch.Tensor) -> None:
        for one in changes:
            one(words)

    return change


def test_what_is_likely_to_differ_shows() -> None:
    torch.manual_seed(1)
    values = torch.randn(32, dtype=torch.float64)
    changes = {
        "one bit": [flipped(at, bit) for at in (0, 31) for bit in range(64)],
        "signs of two": [
            both(flipped(a, 63), flipped(b, 63)) for a, b in itertools.combinations(range(32), 2)
        ],
        "two exchanged": [exchanged(a, b) for a, b in itertools.combinations(range(32), 2)],
        "the same bit of two": [both(flipped(1, bit), flipped(2, bit)) for bit in range(63)],
        "one more, one less": [both(lambda w: w[3].add_(1), lambda w: w[4].sub_(1))],
        "turned round": [lambda w: w.copy_(w.flip(0)), lambda w: w.copy_(w.roll(1))],
        "negated": [lambda w: w.view(torch.float64).neg_()],
    }
    seen = {digest(values)}
    for name, some in changes.items():
        for change in some:
            other = values.clone()
            change(other.view(torch.int64))
            seen_before = len(seen)
            seen.add(digest(other))
            assert len(seen) == seen_before + 1, name
    assert digest(torch.zeros(8)) != digest(torch.zeros(16))


def control() -> Control:
    torch_dist.init_process_group("gloo")
    return Control(torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size())


def trained() -> Training:
    training = Training()
    training.train(2)
    return training


def compare(directory: Path, on_device: tuple[bool, bool]) -> int:
    """Save and refuse; `on_device`: what each rank takes for a device's. Returns how many were hashed."""
    here = control()
    mine = on_device[here.rank]
    replicas.is_on_device = lambda tensor: mine
    hashed: list[Any] = []
    digests_of = hashing.digests_of

    def note(views: Mapping[str, memoryview]) -> dict[str, bytes]:
        hashed.extend(views)
        return digests_of(views)

    hashing.digests_of = note
    manager = CheckpointManager(directory, run_id="run", attempt=0, control=here)
    training = trained()
    training.model.norm.running_mean.fill_(here.rank)
    training.model.seen.fill_(here.rank)
    manager.save(2, training.state)
    count = len(hashed)
    with torch.no_grad():
        training.model.norm.weight.view(torch.int32)[2] ^= int(here.rank == 1)
    with pytest.raises(ReplicaMismatch, match=r"other weights \('model'\) .* first in 'model/norm.weight'"):
        manager.save(3, training.state)
    training = trained()
    training.optimizer.param_groups[0]["lr"] = 0.1 * here.rank
    with pytest.raises(ReplicaMismatch, match=r"other optimizer state .* first in the value 'param_groups'"):
        manager.save(3, training.state)
    torch_dist.barrier()
    torch_dist.destroy_process_group()
    return count


@pytest.mark.multiprocess
def test_ranks_above_0_hash_nothing_on_the_host(tmp_path: Path) -> None:
    counts = run_ranks(compare, 2, args=(tmp_path, (True, True)))
    assert counts[0] > 0, "rank 0 hashes what it writes"
    assert counts[1] == 0
    assert {key for key in manifest_of(tmp_path, 2).tensors if "/buffer/" in key} == {
        "rank0/buffer/seen",
        "rank1/buffer/seen",
        "rank1/buffer/norm.running_mean",
    }


@pytest.mark.multiprocess
@pytest.mark.parametrize("on_device", [(True, False), (False, True), (False, False)])
def test_ranks_that_hold_it_in_unlike_places_compare_too(
    tmp_path: Path, on_device: tuple[bool, bool]
) -> None:
    run_ranks(compare, 2, args=(tmp_path, on_device))
