"""Compare the replicated state of all ranks at every save; name the rank that differs.

Tensors in host memory are hashed by XXH3, which is the fastest there; those on a device by device_digest,
where they are. Where ranks hold one tensor in unlike places, all of them take that digest for every tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import xxhash

from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.format.hashing import digested, digests_of, state_hash_of
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.state.collect import CollectedState
from dist_train.checkpoint.state.device_digest import digests
from dist_train.rundir.name_ranks import name_ranks

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

# Begins the names of buffers outside any state_dict, among those of all tensors.
_LOCAL = "local buffer "
_KIND_NAMES = {"module": "weights", "optimizer": "optimizer state"}


@dataclass(frozen=True)
class Compared:
    """What came of a comparison.

    Args:
        differing: names (as under `rank<r>/buffer/`) of the buffers that are not equal on all ranks: those
            may differ, such as BatchNorm's running statistics, and are saved for each rank.
        digests: manifest key -> XXH3-128 of the bytes, of the tensors that were compared by it.
    """

    differing: frozenset[str] = frozenset()
    digests: Mapping[str, bytes] = field(default_factory=dict)


def compare_replicas(control: Control, step: int, collected: CollectedState) -> Compared:
    """Compare all replicated state over ranks (collective).

    Raises:
        ReplicaMismatch: anything else than buffers differs; names the rank, the entry and a tensor.
    """
    if control.world_size == 1:
        return Compared()
    mine = _Digests(collected)
    rows = control.all_gather([*mine.row(), {"step": step, "on device": mine.where}])
    if len({str(_part(row, 2)["on device"]) for row in rows}) > 1:
        mine = _Digests(collected, everywhere=True)
        rows = control.all_gather([*mine.row(), {"step": step}])
    _refuse_other_steps([_part(row, 2)["step"] for row in rows])
    entries, buffer_rows = [_part(row, 0) for row in rows], [_part(row, 1) for row in rows]
    for key in sorted({key for row in entries for key in row}):
        found = [row.get(key) for row in entries]
        if len(set(found)) > 1:
            _raise_mismatch(control, step, mine, key, found)
    names = {name for row in buffer_rows for name in row}
    differing = frozenset(name for name in names if len({row.get(name) for row in buffer_rows}) > 1)
    return Compared(differing, mine.of_tensors)


def _refuse_other_steps(steps: list[JsonValue]) -> None:
    if len(set(map(str, steps))) > 1:
        listed = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps[:8]))
        raise ReplicaMismatch(
            f"ranks save different steps ({listed})", cause="they have not made the same number of steps"
        )


class _Digests:
    """One rank's digests of its state.

    Args:
        collected: its state.
        everywhere: also tensors in host memory are digested as on a device.
    """

    def __init__(self, collected: CollectedState, everywhere: bool = False) -> None:
        self.collected = collected
        tensors = collected.tensors | {f"{_LOCAL}{n}": t for n, t in collected.local_buffers.items()}
        on_device = {name for name, tensor in tensors.items() if everywhere or is_on_device(tensor)}
        self._words = digests({name: tensor for name, tensor in tensors.items() if name in on_device})
        on_host = {name: tensor for name, tensor in tensors.items() if name not in on_device}
        self._on_host = digests_of(byte_views(on_host))

    @property
    def of_tensors(self) -> dict[str, bytes]:
        """Those of tensors in host memory, by manifest key."""
        return {key: digest for key, digest in self._on_host.items() if key in self.collected.tensors}

    @property
    def where(self) -> str:
        """Equal on two ranks if the same tensors of theirs are on a device."""
        return xxhash.xxh3_128_hexdigest(dump_canonical(sorted(self._words)))

    def row(self) -> list[JsonValue]:
        """The digests of the entries, and those of the buffers by their name under `rank<r>/buffer/`."""
        collected = self.collected
        entries: dict[str, JsonValue] = {
            key: self._of(self._shared(key), dump_canonical(collected.entries[key]))
            for key in collected.owned
        }
        buffers: dict[str, JsonValue] = {
            collected.buffers[name]: self._of_one(name, tensor)
            for name, tensor in collected.tensors.items()
            if name in collected.buffers
        }
        local: dict[str, JsonValue] = {
            name: self._of_one(f"{_LOCAL}{name}", t) for name, t in collected.local_buffers.items()
        }
        return [entries, buffers | local]

    def each(self, key: str) -> dict[str, JsonValue]:
        """The digest of each tensor of an entry, but of its buffers."""
        return {name: self._of_one(name, tensor) for name, tensor in self._shared(key).items()}

    def _shared(self, key: str) -> dict[str, torch.Tensor]:
        collected = self.collected
        return {n: t for n, t in collected.owned.get(key, {}).items() if n not in collected.buffers}

    def _of(self, tensors: Mapping[str, torch.Tensor], content: bytes) -> str:
        on_host = {name: tensor for name, tensor in tensors.items() if name in self._on_host}
        text = state_hash_of(digested(on_host, self._on_host), content)
        rest = [
            [name, dtype_name(tensor.dtype), [*tensor.shape], self._words[name]]
            for name, tensor in sorted(tensors.items())
            if name in self._words
        ]
        return xxhash.xxh3_128_hexdigest(dump_canonical([text, rest])) if rest else text

    def _of_one(self, name: str, tensor: torch.Tensor) -> str:
        return self._of({name: tensor}, b"")


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a hash by the processor would copy the tensor first."""
    return tensor.device.type != "cpu"


def _part(row: JsonValue, index: int) -> dict[str, JsonValue]:
    assert isinstance(row, list)
    part = row[index]
    assert isinstance(part, dict)
    return part


def _raise_mismatch(control: Control, step: int, mine: _Digests, key: str, found: list[JsonValue]) -> None:
    rows = [row if isinstance(row, dict) else {} for row in control.all_gather(mine.each(key))]
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, digest in enumerate(found):
        groups[str(digest)].append(rank)
    # The largest group is taken to be right; of equal ones that with the lowest rank.
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    majority, odd = ordered[0], sorted(rank for ranks in ordered[1:] for rank in ranks)
    names = sorted({name for row in rows for name in row})
    tensor = next((n for n in names if any(rows[r].get(n) != rows[majority[0]].get(n) for r in odd)), None)
    entry = mine.collected.entries.get(key)
    value = None if tensor else _first_value(control, entry, majority[0], odd)
    where = f"'{tensor}'" if tensor else f"the value '{value}'" if value else ""
    what = _KIND_NAMES.get(str(entry.get("kind")) if isinstance(entry, dict) else "", "state")
    tie = len(ordered[1]) == len(majority)
    raise ReplicaMismatch(
        f"step {step} is not saved: {name_ranks(odd)} {'has' if len(odd) == 1 else 'have'} "
        f"other {what} ('{key}') than {name_ranks(majority)}"
        + (f", first in {where}" if where else ", in values outside its tensors"),
        odd,
        cause="no majority: either side may be the wrong one"
        if tie
        else "a faulty device, or code that does not do the same on all ranks",
        hint="resume from the last checkpoint; state that is each rank's own: dt.checkpoint.PerRank(object)",
    )


def _first_value(control: Control, entry: object, right: int, odd: list[int]) -> str | None:
    """The keys that lead to the first value outside tensors which an odd rank has otherwise (collective)."""
    values = dict(_values(entry.get("content") if isinstance(entry, dict) else None, ""))
    rows = [row if isinstance(row, dict) else {} for row in control.all_gather(values)]
    names = sorted({name for row in rows for name in row})
    return next((n for n in names if any(rows[rank].get(n) != rows[right].get(n) for rank in odd)), None)


def _values(content: object, path: str) -> Iterator[tuple[str, JsonValue]]:
    """(keys joined by "/", hash) of each value in nested dicts of an entry's content."""
    if isinstance(content, dict) and content and not any(str(key).startswith("$") for key in content):
        for key, value in content.items():
            yield from _values(value, f"{path}/{key}" if path else str(key))
    elif path:
        yield path, state_hash_of({}, dump_canonical(content))
