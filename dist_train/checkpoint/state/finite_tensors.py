"""Which of a checkpoint's weights and moments are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dist_train.checkpoint.format.byte_views import all_finite, small_groups
from dist_train.checkpoint.state.collect import CollectedState

_NAMED = 8


def not_finite(collected: CollectedState, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The first manifest keys of parameters with a nan or an infinity, and of other state with a nan.

    (A buffer may hold infinities: a mask. Values that are neither a module's nor an optimizer's are not
    looked at.)

    Args:
        tensors: manifest key -> tensor in host memory.
    """
    return _not_finite(collected, collected.owned, tensors)


def parts_not_finite(collected: CollectedState, parts: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The same of a rank's parts of sharded tensors, by manifest key."""
    return _not_finite(collected, collected.sharded, parts)


def _not_finite(
    collected: CollectedState,
    names_of: Mapping[str, Mapping[str, object]],
    tensors: Mapping[str, torch.Tensor],
) -> tuple[str, ...]:
    found: list[str] = []
    names = [
        name
        for key, owned in names_of.items()
        if _kind(collected, key) in ("module", "optimizer")
        for name in owned
        if name in tensors
    ]
    finite = _finite_at_once({name: tensors[name] for name in names})
    for key, owned in names_of.items():
        kind = _kind(collected, key)
        for name in owned if kind in ("module", "optimizer") else ():
            if name in finite:
                continue
            is_parameter = kind == "module" and name not in collected.buffers
            if name in tensors and not _is_finite(tensors[name], is_parameter):
                found.append(name)
                if len(found) == _NAMED:
                    return tuple(found)
    return tuple(found)


def _kind(collected: CollectedState, key: str) -> object:
    entry = collected.entries[key]
    return entry.get("kind") if isinstance(entry, dict) else None


def _finite_at_once(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """The names of the small tensors that one sum over all of a dtype shows to be finite."""
    return {
        name
        for names, members in small_groups(tensors)
        if not members[0].is_floating_point() or all_finite(members)
        for name in names
    }


def _is_finite(tensor: torch.Tensor, infinities_count: bool) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        return True
    # One pass without a copy: a sum is finite only if every value is (but a large sum may overflow).
    if bool(torch.isfinite(tensor.sum())):
        return True
    return bool((torch.isfinite(tensor) if infinities_count else ~torch.isnan(tensor)).all())
