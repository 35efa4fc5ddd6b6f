"""Gather each rank's own state on rank 0: RNG state, buffers that differ, the words of PerRank entries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as torch_dist

from dist_train.checkpoint.agreement import on_every_rank
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.format.tensor_bytes import code_of, dtype_of, host, new_tensor, view_bytes
from dist_train.checkpoint.state.collect import CollectedState
from dist_train.checkpoint.state.per_rank import encode_per_rank
from dist_train.checkpoint.state.rng_state import capture_rng
from dist_train.checkpoint.state.stage_tensors import has_values_elsewhere
from dist_train.distributed.place import Place

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue


def own_tensors(
    collected: CollectedState, rank: int, place: Place, differing: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Return this rank's tensors by manifest key.

    `data<r>/rng/<name>`, if it speaks for its data coordinate; `rank<r>/buffer/<name>` where it differs
    from rank 0's. Of a buffer outside any state_dict `rank0/buffer/<name>` is that of a rank that uses it.
    """
    own: dict[str, torch.Tensor] = {}
    if place.counts:
        own = {f"data{place.data_rank}/rng/{name}": rng for name, rng in capture_rng().items()}
    for name, tensor in collected.local_buffers.items():
        # Outside any state_dict, so rank 0's copy has no other place. Other meshes take it on all ranks.
        if rank == collected.holders[name]:
            own[f"rank0/buffer/{name}"] = host(tensor)
        elif rank and name in differing:
            own[f"rank{rank}/buffer/{name}"] = host(tensor)
    if rank > 0:
        tensors = collected.tensors
        own |= {
            f"rank{rank}/buffer/{name}": host(tensors[key])
            for key, name in collected.buffers.items()
            if name in differing
        }
    return own


def gather_per_rank(control: Control, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gather the tensors that are each rank's own (collective; empty but on rank 0)."""
    everything: dict[str, torch.Tensor] = {}
    for payload in control.all_gather_bytes(_pack(own)):
        if control.is_main:
            everything |= _unpack(payload)
    return everything


@dataclass(frozen=True)
class OwnState:
    """What this rank holds of the PerRank entries.

    Args:
        tensors: manifest key -> tensor.
        bytes_of_ranks: of each rank's tensors; None where a rank has none. Tensors may have no bytes.
    """

    tensors: Mapping[str, torch.Tensor]
    bytes_of_ranks: tuple[int | None, ...]

    @property
    def writers(self) -> tuple[int, ...]:
        """The ranks above 0 that have tensors to write."""
        return tuple(rank for rank, count in enumerate(self.bytes_of_ranks) if rank and count is not None)

    @property
    def others_bytes(self) -> int:
        """Of all ranks but rank 0."""
        return sum(self.bytes_of_ranks[rank] or 0 for rank in self.writers)


def names_of_entries(collected: CollectedState) -> JsonValue:
    """Return names of PerRank entries, whether there are sharded tensors, and absent ones, as they travel."""
    absent = has_values_elsewhere(collected)
    return [[*sorted(collected.per_rank)], bool(collected.sharded), absent]


def refuse_unlike_entries(step: int, names: Sequence[JsonValue]) -> None:
    """Refuse ranks that mark other entries as their own: gather_contents would wait for some of them only.

    Args:
        step: that is being saved.
        names: of the PerRank entries of each rank.

    Raises:
        ReplicaMismatch: naming a rank and its entries; the same on all ranks.
    """
    odd = [rank for rank, own in enumerate(names) if own != names[0]]
    if odd:
        raise ReplicaMismatch(
            f"step {step} is not saved: of PerRank entries rank 0 has {_listed(names[0])}, "
            f"rank {odd[0]} has {_listed(names[odd[0]])}",
            odd,
            cause="ranks give save() unlike names",
            hint="give save() the same names on all ranks; a rank without anything of its own gives "
            "PerRank(object), too, whose state_dict() is empty",
        )


def _listed(names: JsonValue) -> str:
    assert isinstance(names, list)
    return ", ".join(f"'{name}'" for name in names) or "none"


def gather_contents(control: Control, collected: CollectedState) -> OwnState:
    """Gather the contents of the PerRank entries on rank 0; their tensors, which may be large, stay.

    Collective.
    """
    own: dict[str, torch.Tensor] = {}
    if not collected.per_rank:
        return OwnState(own, (None,) * control.world_size)

    def encoded() -> dict[str, JsonValue]:
        return {
            key: encode_per_rank(key, value, control.rank, own) for key, value in collected.per_rank.items()
        }

    contents = on_every_rank(control, encoded)
    count = sum(tensor.nbytes for tensor in own.values()) if own else None
    rows = control.all_gather([contents, count])
    found: list[tuple[dict[str, JsonValue], int | None]] = rows  # type: ignore[assignment]
    for key in collected.per_rank:
        collected.entries[key] = {"kind": "per_rank", "content": [row[key] for row, _ in found]}
    return OwnState(own, tuple(count for _, count in found))


def gather_on_rank_zero(control: Control, payload: bytes) -> list[bytes]:
    """Send every rank's bytes to rank 0, which returns those of the others in their order (collective)."""
    sizes = control.all_gather(len(payload))
    received: list[bytes] = []
    for rank in range(1, control.world_size):
        size = sizes[rank]
        assert isinstance(size, int)
        if control.rank == rank:
            box = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            torch_dist.send(box, dst=0, group=control.group)
        elif control.is_main:
            box = torch.empty(size, dtype=torch.uint8)
            torch_dist.recv(box, src=rank, group=control.group)
            received.append(bytes(view_bytes(box)))
    return received


def _pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    head = [[name, code_of(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(view_bytes(host(t)) for t in tensors.values())])


def _unpack(payload: bytes | memoryview) -> dict[str, torch.Tensor]:
    start = 8 + int.from_bytes(payload[:8], "little")
    tensors = {}
    for name, code, shape in json.loads(bytes(payload[8:start])):
        tensors[name], view = new_tensor(shape, dtype_of(code))
        view[:] = payload[start : start + len(view)]
        start += len(view)
    return tensors
