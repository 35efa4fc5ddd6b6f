"""Choose the modules that an option names: each is treated by itself, none inside of another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dist_train.errors import ConfigError
from dist_train.strategies.fully_sharded.sharding_units import Unit, fitting_modules

AUTO = "auto"


def choose_blocks(model: nn.Module, modules: str | Sequence[str], option: str) -> list[Unit]:
    """Return the chosen modules; of those inside of one another the outermost, which is called first.

    Args:
        model: the plain model.
        modules: names of classes, or patterns of module names (`layers.*`); `auto`: each member of a
            ModuleList.
        option: what they are chosen for, as the config calls it; errors name it.

    Raises:
        ConfigError: a name that fits no module or a container of modules, or `auto` without a ModuleList.
    """
    if isinstance(modules, str) and modules != AUTO:
        raise ConfigError(f"{option}: {modules!r} is no list of names", hint=f"[{modules}], or {AUTO}")
    found = fitting_modules(model, None if isinstance(modules, str) else list(modules), option)
    if not found:
        raise ConfigError(
            f"{option}: {type(model).__name__} has no ModuleList whose members could be chosen",
            hint="name classes of its modules, or patterns of their names",
        )
    names = {unit.name for unit in found}
    return [unit for unit in found if not any(above in names for above in _parents(unit.name))]


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
