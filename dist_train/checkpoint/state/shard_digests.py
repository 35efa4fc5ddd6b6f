"""Digest what is spread over ranks: compare the copies of each part, and digest whole weights one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as torch_dist
import xxhash

from dist_train.checkpoint.format.boxes import whole
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.format.tensor_bytes import host, new_tensor
from dist_train.checkpoint.state.device_digest import digests
from dist_train.checkpoint.state.shard_layout import Holders, ShardLayout
from dist_train.checkpoint.state.sharded_tensors import ShardedTensor
from dist_train.rundir.name_ranks import name_ranks

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

Tensors = Mapping[str, ShardedTensor]


def compare_parts(control: Control, step: int, layout: ShardLayout, tensors: Tensors) -> None:
    """Compare all copies of each part; a part that one rank alone holds has none (collective).

    Raises:
        ReplicaMismatch: naming the ranks and a tensor.
    """
    if not layout.has_replicas:
        return
    of_holders: dict[Holders, dict[str, torch.Tensor]] = defaultdict(dict)
    for key in sorted(tensors):
        for box, values in tensors[key].parts:
            holders = layout.holders(key)[box]
            if len(holders) > 1:
                of_holders[holders][f"{key} {box.offset}"] = values
    mine = {holders: _digests(values) for holders, values in of_holders.items()}
    rows = control.all_gather({_text(holders): _combined(found) for holders, found in mine.items()})
    groups = sorted({name for row in rows if isinstance(row, dict) for name in row})
    for name in groups:
        found = [row.get(name) if isinstance(row, dict) else None for row in rows]
        if len(set(found) - {None}) > 1:
            own = next((digests for holders, digests in mine.items() if _text(holders) == name), {})
            _raise_mismatch(control, step, found, own)


def _digests(parts: Mapping[str, torch.Tensor]) -> dict[str, str]:
    # By the digest of devices everywhere: parts in unlike places must be comparable.
    return {name: str(words) for name, words in digests(dict(parts)).items()}


def _combined(found: Mapping[str, str]) -> str:
    return xxhash.xxh3_128_hexdigest("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode())


def _text(holders: Holders) -> str:
    return ",".join(map(str, holders))


def _raise_mismatch(control: Control, step: int, found: Sequence[JsonValue], own: Mapping[str, str]) -> None:
    rows = [row if isinstance(row, dict) else {} for row in control.all_gather(dict(own))]
    holders = [rank for rank, digest in enumerate(found) if digest is not None]
    sides: dict[str, list[int]] = defaultdict(list)
    for rank in holders:
        sides[str(found[rank])].append(rank)
    ordered = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    right, odd = ordered[0], sorted(rank for ranks in ordered[1:] for rank in ranks)
    wanted = rows[right[0]]
    name = next((n for n in sorted(wanted) if any(rows[rank].get(n) != wanted[n] for rank in odd)), "")
    raise ReplicaMismatch(
        f"step {step} is not saved: {name_ranks(odd)} {'has' if len(odd) == 1 else 'have'} another part of "
        f"'{name.split(' ')[0]}' than {name_ranks(right)}, of which it is a copy",
        odd,
        cause="no majority: either side may be the wrong one"
        if len(ordered[1]) == len(right)
        else "a faulty device, or code that does not do the same on all ranks",
        hint="resume from the last checkpoint",
    )


def digest_whole(
    control: Control, layout: ShardLayout, tensors: Tensors, keys: Sequence[str]
) -> dict[str, bytes]:
    """Digest the bytes of whole tensors: each rank gathers some of them, one at a time (collective).

    Args:
        control: all ranks.
        layout: of the tensors.
        tensors: this rank's parts.
        keys: of the tensors to digest; the same on all ranks.

    Returns:
        manifest key -> XXH3-128, on all ranks.
    """
    mine: dict[str, JsonValue] = {}
    for start in range(0, len(keys), control.world_size):
        _digest_some(control, layout, tensors, keys[start : start + control.world_size], mine)
    rows = control.all_gather(mine)
    return {
        key: bytes.fromhex(str(digest))
        for row in rows
        if isinstance(row, dict)
        for key, digest in row.items()
    }


def _digest_some(
    control: Control, layout: ShardLayout, tensors: Tensors, keys: Sequence[str], mine: dict[str, JsonValue]
) -> None:
    """One tensor for each rank: the writers of its parts send them to that rank."""
    waiting, sent = [], []
    for owner, key in enumerate(keys):
        if owner == control.rank:
            continue
        for box, values in sorted(tensors[key].parts, key=lambda part: part[0]):
            if layout.is_written_here(key, box):
                flat = _as_bytes(host(values))
                sent.append(flat)
                waiting.append(torch_dist.isend(flat, dst=owner, group=control.group))
    if control.rank < len(keys):
        key = keys[control.rank]
        mine[key] = _digest_one(control, layout, tensors[key], key)
    for each in waiting:
        if each is not None:
            each.wait()


def _digest_one(control: Control, layout: ShardLayout, tensor: ShardedTensor, key: str) -> str:
    full, view = new_tensor(tensor.shape, tensor.dtype)
    everything = whole(tensor.shape)
    own = dict(tensor.parts)
    for box, holders in sorted(layout.holders(key).items(), key=lambda item: (item[1][0], item[0])):
        target = full[box.slices_in(everything)]
        if holders[0] == control.rank:
            target.copy_(own[box])
            continue
        received = target if target.is_contiguous() else torch.empty(box.shape, dtype=tensor.dtype)
        torch_dist.recv(_as_bytes(received), src=holders[0], group=control.group)
        if received is not target:
            target.copy_(received)
    return xxhash.xxh3_128_hexdigest(view)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
