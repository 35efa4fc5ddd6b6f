"""Lay a model's layers over several devices of one process, and move what passes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dist_train.distributed.pytree import map_tensors
from dist_train.errors import ConfigError
from dist_train.strategies.blocks.chosen_blocks import AUTO, choose_blocks
from dist_train.strategies.fully_sharded.sharding_units import Unit, fitting_modules
from dist_train.strategies.rank_memory import bytes_of


@dataclass(frozen=True)
class Placement:
    """Which module lies on which device.

    Args:
        device_of: name of a module -> number of its device; what is in none of them lies on device 0.
        bytes_of_device: of parameters and buffers, by the number of the device.
    """

    device_of: Mapping[str, int]
    bytes_of_device: tuple[int, ...]


def balanced(model: nn.Module, devices: int) -> Placement:
    """Give each device a run of the members of the model's ModuleLists, so that the fullest holds least.

    The rest of the model lies on device 0.

    Raises:
        ConfigError: fewer members than devices, or a parameter that is shared between devices.
    """
    blocks = choose_blocks(model, AUTO, "split")
    if len(blocks) < devices:
        raise ConfigError(
            f"split: {len(blocks)} member(s) of ModuleLists over {devices} devices",
            hint="fewer devices, or `map`: which module lies on which device",
        )
    sizes = [_bytes(unit.module) for unit in blocks]
    rest = _bytes(model) - sum(sizes)
    counts = _least_maximum(sizes, rest, devices)
    numbers = [device for device, count in enumerate(counts) for _ in range(count)]
    return _placement(model, blocks, numbers, devices)


def by_map(model: nn.Module, chosen: Mapping[str, int], devices: int) -> Placement:
    """Place modules by name.

    Args:
        chosen: a class or a pattern of module names -> number of a device.

    Raises:
        ConfigError: a name that fits no module, a module that is placed twice, a device that is not there or
            not used, or a parameter that is shared between devices.
    """
    found: dict[str, tuple[Unit, int]] = {}
    for word, device in chosen.items():
        if not 0 <= device < devices:
            raise ConfigError(
                f"split: map places '{word}' on device {device}, and a rank has {devices}",
                hint=f"0 to {devices - 1}: they are counted within the rank",
            )
        for unit in fitting_modules(model, [word], "split: map"):
            if found.setdefault(unit.name, (unit, device))[1] != device:
                raise ConfigError(f"split: map places '{unit.name}' on two devices")
    for name, (_, device) in found.items():
        for above, (_, other) in found.items():
            if name.startswith(f"{above}.") and other != device:
                raise ConfigError(
                    f"split: map places '{name}' on device {device}, and '{above}' around it on {other}"
                )
    units, numbers = [unit for unit, _ in found.values()], [device for _, device in found.values()]
    return _placement(model, units, numbers, devices)


def _placement(model: nn.Module, units: Sequence[Unit], numbers: Sequence[int], devices: int) -> Placement:
    device_of = {unit.name: device for unit, device in zip(units, numbers, strict=True)}
    sizes = [0] * devices
    places: dict[int, tuple[str, int]] = {}
    for name, tensor in _named_tensors(model):
        device = _device_of(name, device_of)
        before = places.setdefault(id(tensor), (name, device))
        if before[1] != device:
            raise ConfigError(
                f"split: '{before[0]}' on device {before[1]} and '{name}' on device {device} are one tensor",
                hint="`map`: place the modules that share it on one device",
            )
        if before[0] == name:
            sizes[device] += tensor.numel() * tensor.element_size()
    empty = [device for device, size in enumerate(sizes) if not size]
    if empty:
        raise ConfigError(
            f"split: nothing lies on device {empty[0]} of {devices}", hint="fewer devices, or another `map`"
        )
    return Placement(device_of, tuple(sizes))


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _device_of(name: str, device_of: Mapping[str, int]) -> int:
    """Of a module or tensor: that of the innermost placed module around it."""
    while name:
        if name in device_of:
            return device_of[name]
        name = name.rpartition(".")[0]
    return 0


def _bytes(module: nn.Module) -> int:
    return bytes_of({id(each): each for each in (*module.parameters(), *module.buffers())}.values())


def _least_maximum(sizes: Sequence[int], rest: int, devices: int) -> list[int]:
    """Cut a row of sizes into as many runs so that the fullest, with the rest in the first, is smallest."""
    low, high = max([*sizes, rest + sizes[0]]), rest + sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if _runs(sizes, rest, devices, middle) is None:
            low = middle + 1
        else:
            high = middle
    found = _runs(sizes, rest, devices, low)
    assert found is not None
    return found


def _runs(sizes: Sequence[int], rest: int, devices: int, most: int) -> list[int] | None:
    """Members of each run, none above `most`, at least one in each; None where that is impossible."""
    counts, held, left = [0], rest, len(sizes)
    for size in sizes:
        begun = devices - len(counts)
        # Those that are left must be enough for one on each device that is left.
        if counts[-1] and (held + size > most or left == begun):
            if not begun:
                return None
            counts.append(0)
            held = 0
        if held + size > most:
            return None
        counts[-1] += 1
        held += size
        left -= 1
    return counts if len(counts) == devices else None


def place(model: nn.Module, placement: Placement, devices: Sequence[torch.device]) -> None:
    """Move every module to its device; what a module is called with follows it, and the output comes back.

    Args:
        model: plain; changed in place.
        devices: of this rank; batches come to the first, and so does what the model returns.
    """
    for name, module in model.named_modules():
        device = devices[_device_of(name, placement.device_of)]
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own or name in placement.device_of:
            module.register_forward_pre_hook(_Follow(device), with_kwargs=True)
    moved: dict[int, Tensor] = {}
    for name, module in model.named_modules():
        device = devices[_device_of(name, placement.device_of)]
        for parameter in module.parameters(recurse=False):
            parameter.data = moved.setdefault(id(parameter), parameter.data.to(device))
        for key, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            module._buffers[key] = moved.setdefault(id(buffer), buffer.to(device))
    first = devices[0]
    model.register_forward_hook(lambda module, args, output: map_tensors(output, _to(first)))
    others = [device.index for device in devices[1:] if device.type == "cuda"]
    if others:
        model.register_forward_pre_hook(lambda module, args: _seed_others(others))


class _Follow:
    """Forward pre-hook: arguments come to the module's device."""

    def __init__(self, device: torch.device) -> None:
        self._move = _to(device)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map_tensors(list(args), self._move)), map_tensors(dict(kwargs), self._move)


def _to(device: torch.device) -> Any:
    return lambda tensor: tensor if tensor.device == device else tensor.to(device)


def _seed_others(devices: Sequence[int]) -> None:
    """Random numbers of the other devices follow from the CPU's, whose state is in the checkpoint."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    for number, device in enumerate(devices):
        torch.cuda.default_generators[device].manual_seed((seed + number) % 2**63)
