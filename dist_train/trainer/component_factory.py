"""Call one component of a config: import its target, check its arguments; errors name the config's key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dist_train.config.component import Component
from dist_train.config.components import resolve
from dist_train.config.shortcuts import short_names
from dist_train.errors import ConfigError


def target_of(component: Component, kind: str) -> Callable[..., Any]:
    """What a component names, imported. Raises ConfigError for what cannot be called."""
    target = resolve(component.target, short_names(kind))
    if not callable(target):
        raise ConfigError(f"{kind}: {component.target} is {target!r}, which cannot be called")
    return target


def make(component: Component, kind: str, *positional: Any) -> Any:
    """Call the component with its args.

    Raises:
        ConfigError: the args do not fit its signature. Its own exceptions are not caught.
    """
    target = target_of(component, kind)
    check_call(target, component, kind, positional)
    return target(*positional, **component.args)


def check_call(
    target: Callable[..., Any], component: Component, kind: str, positional: tuple[Any, ...]
) -> None:
    """Raise ConfigError where these arguments do not fit the target's signature."""
    try:
        inspect.signature(target).bind(*positional, **component.args)
    except ValueError:
        return  # built-ins may have no signature
    except TypeError as error:
        raise ConfigError(
            f"{kind}: {component.target} cannot be called with the args {sorted(component.args)}",
            cause=str(error),
            hint=f"its signature is {inspect.signature(target)}",
        ) from None
