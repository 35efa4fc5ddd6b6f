"""The optimizer's parameter groups, by patterns of names and of module classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dist_train.config.schema import ParameterGroup
from dist_train.distributed.parameter_shards import plain_class
from dist_train.errors import ConfigError
from dist_train.near_names import nearest


def grouped(model: nn.Module, groups: Sequence[ParameterGroup]) -> Any:
    """What the optimizer is called with: the parameters, or a list of groups, the one without options first.

    Args:
        model: unwrapped: names are those of its `named_parameters`.

    Raises:
        ConfigError: a pattern that no parameter matches, or no parameter is left for a group.
    """
    if not groups:
        return model.parameters()
    classes = dict(_classes(model))
    for index, group in enumerate(groups):
        _check(index, group, classes)
    found: list[list[nn.Parameter]] = [[] for _ in range(len(groups) + 1)]
    for name, parameter in model.named_parameters():
        place = next((i + 1 for i, one in enumerate(groups) if _matches(one, name, classes[name])), 0)
        found[place].append(parameter)
    # The first group's learning rate is the one that is logged; torch refuses an empty one.
    options = [{}, *(group.args for group in groups)]
    return [{"params": some, **args} for some, args in zip(found, options, strict=True) if some]


def check_group_options(optimizer: Optimizer, groups: Sequence[ParameterGroup]) -> None:
    """Raise ConfigError for an option that the optimizer does not have: torch would keep and ignore it."""
    for index, group in enumerate(groups):
        for option in group.args:
            if option in optimizer.defaults:
                continue
            near = nearest(option, optimizer.defaults)
            raise ConfigError(
                f"parameter_groups.{index}: {type(optimizer).__name__} has no option {option!r}",
                cause=f"it has {', '.join(sorted(optimizer.defaults))}",
                hint=f"did you mean {near!r}?" if near else None,
            )


def _classes(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Name of each parameter and the class of the module that holds it."""
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            yield f"{path}.{name}".lstrip("."), plain_class(module).__name__


def _matches(group: ParameterGroup, name: str, owner: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in group.parameters) or any(
        fnmatchcase(owner, pattern) for pattern in group.modules
    )


def _check(index: int, group: ParameterGroup, classes: dict[str, str]) -> None:
    kinds = (
        (group.parameters, list(classes), "no parameter is called"),
        (group.modules, sorted(set(classes.values())), "no module with parameters is a"),
    )
    for patterns, known, text in kinds:
        for pattern in patterns:
            if any(fnmatchcase(name, pattern) for name in known):
                continue
            near = nearest(pattern, known)
            raise ConfigError(
                f"parameter_groups.{index}: {text} {pattern!r}",
                cause=f"there is {', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
                hint=f"did you mean {near!r}?" if near else "patterns match whole names: `*.bias`",
            )
