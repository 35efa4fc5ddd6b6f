"""Tensors that some ranks hold and others know by name only (device meta): the stages of a pipeline.

On each rank of a pipeline the model has all names, and values of one stage. The optimizer has state for the
parameters with values. So the ranks' states are unlike in a way that is right; here each rank is told what
the others hold, and the rest of a save sees tensors that are spread over ranks: one box, on the ranks that
hold it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from dist_train.checkpoint.format.boxes import whole
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.state.collect import CollectedState, prefix_of
from dist_train.checkpoint.state.sharded_tensors import ShardedTensor
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

# Of a tensor: state key, manifest key, dtype, shape, how a rank's part of it is cut.
_Row = list[Any]


def has_values_elsewhere(collected: CollectedState) -> bool:
    """Whether this rank knows a tensor by its name only."""
    return any(tensor.is_meta for tensor in collected.tensors.values())


def complete_stages(control: Control, step: int, collected: CollectedState) -> None:
    """Take the tensors out of `collected.owned` that not all ranks hold, and add those of other ranks.

    Collective; changes `collected` in place: afterwards `collected.sharded` has the same names on all ranks,
    and the entries of optimizers are those of all parameters.

    Raises:
        CheckpointError: no rank holds the values of a tensor.
    """
    absent = {key for key, tensor in collected.tensors.items() if tensor.is_meta}
    parameters = {f"{key}/{name}" for key, names in _absent_parameters(collected).items() for name in names}
    everywhere = _texts(control, sorted([*absent, *(f"{name}/*" for name in parameters)]))
    staged = {name for row in everywhere for name in row}
    found = dict(_take_out(collected, staged))
    rows: list[JsonValue] = [[*row] for row in _rows(collected, found)]
    contents: dict[str, JsonValue] = {key: _states(collected, key) for key in _optimizers(collected)}
    answers = _answers(control, [rows, contents])
    _add_those_of_others(control, step, collected, found, answers, absent)
    for key in contents:
        _merge_states(collected, key, [answer[1].get(key, {}) for _, answer in answers])


def _optimizers(collected: CollectedState) -> list[str]:
    return [key for key, entry in collected.entries.items() if _part(entry)["kind"] == "optimizer"]


def _states(collected: CollectedState, key: str) -> dict[str, JsonValue]:
    content = _part(_part(collected.entries[key])["content"])
    return _part(content["state"])


def _absent_parameters(collected: CollectedState) -> dict[str, list[str]]:
    """Prefix of an optimizer's keys -> its parameters without values here."""
    return {prefix_of(key): names for key, names in collected.absent_parameters.items()}


def _texts(control: Control, own: Iterable[str]) -> list[list[str]]:
    """The names of all ranks; those that many ranks have travel once."""
    return [answer for _, answer in _answers(control, [*own])]


def _answers(control: Control, own: JsonValue) -> list[tuple[tuple[int, ...], Any]]:
    """Each answer that some rank gives, and the ranks that give it (collective)."""
    digest = xxhash.xxh3_128_hexdigest(dump_canonical(own))
    digests = control.all_gather(digest)
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, each in enumerate(digests):
        ranks[str(each)].append(rank)
    said = control.all_gather(own if ranks[digest][0] == control.rank else None)
    return [(tuple(holders), said[holders[0]]) for holders in ranks.values()]


def _is_staged(key: str, staged: set[str], prefixes: tuple[str, ...]) -> bool:
    return key in staged or key.startswith(prefixes)


def _take_out(collected: CollectedState, staged: set[str]) -> Iterator[tuple[str, ShardedTensor]]:
    """Remove what is staged from the replicated and from the sharded tensors, and yield what is held here."""
    prefixes = tuple(name.removesuffix("*") for name in staged if name.endswith("/*"))
    for owned in collected.owned.values():
        for key in [key for key in owned if _is_staged(key, staged, prefixes)]:
            tensor = owned.pop(key)
            if not tensor.is_meta:
                shape = tuple(tensor.shape)
                parts = ((whole(shape), tensor),) if tensor.numel() else ()
                yield key, ShardedTensor(tensor.dtype, shape, "whole", parts)
    for sharded in collected.sharded.values():
        for key in [key for key in sharded if _is_staged(key, staged, prefixes)]:
            one = sharded.pop(key)
            yield key, ShardedTensor(one.dtype, one.shape, one.cut.partition("] ")[2] or one.cut, one.parts)


def _rows(collected: CollectedState, found: Mapping[str, ShardedTensor]) -> Iterator[_Row]:
    for key, tensor in sorted(found.items()):
        yield [key, dtype_name(tensor.dtype), [*tensor.shape], tensor.cut]


def _add_those_of_others(
    control: Control,
    step: int,
    collected: CollectedState,
    found: Mapping[str, ShardedTensor],
    answers: Iterable[tuple[tuple[int, ...], Any]],
    absent: set[str],
) -> None:
    kinds: dict[str, tuple[str, tuple[int, ...], str]] = {}
    holders: dict[str, list[int]] = defaultdict(list)
    for ranks, (rows, _) in answers:
        for key, dtype, shape, cut in rows:
            kinds.setdefault(key, (dtype, tuple(shape), cut))
            holders[key].extend(ranks)
    if missing := sorted(absent - set(kinds)):
        raise CheckpointError(
            f"step {step} is not saved: no rank holds the values of '{missing[0]}'",
            cause="it is on the device meta on every rank",
            hint="model.to_empty(device=run.device), then load or initialize its weights",
        )
    for key, (dtype, shape, cut) in kinds.items():
        spread = f"{cut} on {sorted(holders[key])}"
        own = found.get(key)
        parts = () if own is None else own.parts
        kind = getattr(torch, dtype) if own is None else own.dtype
        size = shape if own is None else own.shape
        state_key = next(k for k in collected.owned if key.startswith(f"{prefix_of(k)}/"))
        collected.sharded.setdefault(state_key, {})[key] = ShardedTensor(kind, size, spread, parts)


def _merge_states(collected: CollectedState, key: str, others: Iterable[dict[str, JsonValue]]) -> None:
    """Add the parameters that this rank lacks to an optimizer's entry; its own are compared later."""
    content = _part(_part(collected.entries[key])["content"])
    absent = set(collected.absent_parameters.get(key, ()))
    merged: dict[str, JsonValue] = {}
    for other in others:
        for name, value in other.items():
            if name in absent:
                merged.setdefault(name, value)
    content["state"] = merged | _part(content["state"])


def _part(value: Any) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
