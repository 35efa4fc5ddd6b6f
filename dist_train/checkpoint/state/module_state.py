"""Read and load a module's state under the names of the plain module, whatever wraps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dist_train.checkpoint.format.checkpoint_errors import SHOWN, with_nearest
from dist_train.checkpoint.format.tensor_bytes import check_storable, dtype_name, host
from dist_train.checkpoint.state.sharded_tensors import as_spread
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.distributed.parameter_shards import is_sharded, reshard
from dist_train.errors import CheckpointError

COMPILED = "_orig_mod"
# In memory, or read when it is asked for.
Stored = torch.Tensor | StoredTensor


@dataclass(frozen=True)
class ModuleState:
    """The state of a module, by the names of the plain module.

    Args:
        tensors: its state_dict's tensors, both names of tied ones.
        aliases: second name -> first name of tied tensors.
        buffers: names in `tensors` that are buffers.
        local_buffers: buffers that are not part of the state_dict.
        extra: entries of the state_dict that are not tensors (get_extra_state).
    """

    tensors: dict[str, torch.Tensor]
    aliases: dict[str, str]
    buffers: frozenset[str]
    local_buffers: dict[str, torch.Tensor]
    extra: dict[str, Any]


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module inside DDP, DataParallel and torch.compile."""
    while True:
        inner = getattr(module, COMPILED, None)
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def plain_name(name: str) -> str:
    """Return a name without the parts that torch.compile puts in front of a compiled submodule."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def module_state(module: nn.Module) -> ModuleState:
    """Read a module; tensors are views of its own memory.

    Raises:
        CheckpointError: a tensor that cannot be stored.
    """
    module = unwrap(module)
    reshard(module)
    whole = {plain_name(name): value for name, value in module.state_dict().items()}
    tensors = {name: value for name, value in whole.items() if isinstance(value, torch.Tensor)}
    buffers = {plain_name(name): value for name, value in module.named_buffers(remove_duplicate=False)}
    local = {name: value.detach() for name, value in buffers.items() if name not in whole}
    for name, tensor in (tensors | local).items():
        check_storable(name, tensor)
    return ModuleState(
        tensors=tensors,
        aliases=tied_names(tensors, _ids_of_sharded(module)),
        buffers=frozenset(buffers) & frozenset(tensors),
        local_buffers=local,
        extra={name: value for name, value in whole.items() if name not in tensors},
    )


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Map id(parameter) to its first name."""
    plain = unwrap(module)
    reshard(plain)
    return {id(parameter): plain_name(name) for name, parameter in plain.named_parameters()}


def _ids_of_sharded(module: nn.Module) -> dict[str, int]:
    """Of sharded parameters: a rank's part may have no memory, and is tied on all ranks or on none.

    The same of what other ranks hold (on the device meta).
    """
    tensors = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {plain_name(name): id(one) for name, one in tensors if is_sharded(one) or one.is_meta}


def tied_names(tensors: Mapping[str, torch.Tensor], ids: Mapping[str, int] | None = None) -> dict[str, str]:
    """Map each name that shares its memory with an earlier name to that name.

    Args:
        tensors: by name.
        ids: of those that are told apart by a number, and not by their memory.
    """
    first: dict[object, str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        place: object = (ids or {}).get(name)
        if place is None:
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if first.setdefault(place, name) != name:
            aliases[name] = first[place]
    return aliases


def fit_module(module: nn.Module, given: Mapping[str, Stored], label: str) -> dict[str, Stored]:
    """Return the tensors for every name of the module, after checking that they fit it exactly.

    Args:
        module: the target, wrapped or not.
        given: tensors by plain name; of tied names one is enough.
        label: what the tensors come from, for the error.

    Raises:
        CheckpointError: missing or unexpected names (with the nearest), other shapes or dtypes.
    """
    current = module_state(module)
    complete = dict(given)
    for second, first in current.aliases.items():
        present = [complete[name] for name in (first, second) if name in complete]
        if len(present) == 2 and not _same_bits(*present):
            raise CheckpointError(
                f"the model ties '{second}' to '{first}', but {label} holds different values for them"
            )
        if present:
            complete[first] = complete[second] = present[0]
    problems = _name_problems(current, complete) + _kind_problems(current.tensors, complete)
    if problems:
        raise CheckpointError(
            f"{label} does not fit the model: " + "; ".join(problems),
            hint=_hint(current.tensors, complete),
        )
    return complete


def _hint(expected: Mapping[str, torch.Tensor], given: Mapping[str, Stored]) -> str:
    shapes = {name: tensor.shape for name, tensor in expected.items()}
    if shapes != {name: tensor.shape for name, tensor in given.items()}:
        return "build the model as it was when the checkpoint was written"
    there, here = (
        {tensor.dtype for tensor in part.values() if tensor.dtype.is_floating_point}
        for part in (given, expected)
    )
    if len(there) == len(here) == 1:
        return f"only the precision differs: model.to({there.pop()}), load, then model.to({here.pop()})"
    return "give the model's tensors the dtypes that stand there, load, then convert"


def _name_problems(current: ModuleState, given: Mapping[str, object]) -> list[str]:
    expected = current.tensors
    missing, unexpected = set(expected) - set(given), set(given) - set(expected)
    problems = []
    if missing:
        problems.append(f"missing {with_nearest(missing, sorted(unexpected) or sorted(given))}")
    if unexpected:
        problems.append(f"unexpected {with_nearest(unexpected, sorted(missing) or sorted(expected))}")
    if unsaved := sorted(unexpected & set(current.local_buffers)):
        problems.append(f"'{unsaved[0]}' is a buffer that this model makes itself (persistent=False)")
    return problems


def _kind_problems(expected: Mapping[str, torch.Tensor], given: Mapping[str, Stored]) -> list[str]:
    problems = []
    for name in sorted(set(expected) & set(given)):
        want, have = expected[name], given[name]
        if (want.shape, want.dtype) != (have.shape, have.dtype):
            problems.append(f"'{name}' is {_kind(have)} there and {_kind(want)} in the model")
    more = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _kind(tensor: Stored) -> str:
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"


def _same_bits(one: Stored, other: Stored) -> bool:
    if one is other or (isinstance(one, StoredTensor) and one == other):
        return True
    same_kind = (one.shape, one.dtype) == (other.shape, other.dtype)
    both = [each.read() if isinstance(each, StoredTensor) else each for each in (one, other)]
    flat = [host(tensor).reshape(-1).view(torch.uint8) for tensor in both]
    return same_kind and torch.equal(flat[0], flat[1])


def load_module(module: nn.Module, tensors: Mapping[str, Stored], extra: Mapping[str, Any]) -> None:
    """Copy what `fit_module` has approved into the module's own memory."""
    target = unwrap(module)
    here = target.state_dict()
    names = {plain_name(name): name for name in here}
    given: dict[str, Any] = {
        names[name]: as_spread(value, here[names[name]]) for name, value in tensors.items() if name in names
    }
    given |= {names[name]: value for name, value in extra.items() if name in names}
    target.load_state_dict(given, strict=True)


def load_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Copy buffers by name, where the module has one of this name, shape and dtype."""
    current = {plain_name(n): buffer for n, buffer in unwrap(module).named_buffers(remove_duplicate=False)}
    with torch.no_grad():
        for name, value in buffers.items():
            target = current.get(name)
            if target is not None and (target.shape, target.dtype) == (value.shape, value.dtype):
                target.copy_(value)
