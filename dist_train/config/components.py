"""Components by name: imported in a rank (`resolve`), or checked without importing anything.

The checks only read sources. They refuse what is certainly wrong and accept what they cannot decide.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dist_train.config.bindings import top_level
from dist_train.config.find_source import Module, find_module, parse, submodules
from dist_train.config.problems import did_you_mean
from dist_train.config.signatures import known_arguments
from dist_train.errors import ConfigError
from dist_train.near_names import nearest
from dist_train.rundir.times.span_clock import IMPORT, span_clock


def resolve(target: str, shortcuts: Mapping[str, str] | None = None) -> object:
    """Import the object that `target` ("package.module:Name", or a short name) names.

    Args:
        target: module and attribute (dots reach into it: "module:Class.method").
        shortcuts: short name -> target.

    Raises:
        ConfigError: no such short name, module or attribute, or the module's own imports fail.
    """
    module_name, attribute = split_target(target, shortcuts)
    found: Any = _import(module_name, target)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            message = f"{target!r}: {module_name} has no {attribute!r}"
            raise ConfigError(message, hint=_nearest_name(part, dir(found))) from error
        except Exception as error:  # a module's own __getattr__ may import, and so fail in any way
            raise _broken(module_name, target, error) from error
    return found


def split_target(target: str, shortcuts: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Split a target or a short name into ("package.module", "Name").

    Raises:
        ConfigError: a name without a colon that is no short name.
    """
    full = target if ":" in target else (shortcuts or {}).get(target, "")
    module_name, _, attribute = full.partition(":")
    if module_name and attribute:
        return module_name, attribute
    package, _, name = target.rpartition(".")
    if package and ":" not in target:
        raise ConfigError(f"{target!r} has no colon", hint=f'did you mean "{package}:{name}"?')
    known = sorted(shortcuts or {})
    message = f"{target!r} is no short name" if ":" not in target else f"{target!r} is not a target"
    choices = f"{did_you_mean(target, known)} " if known and ":" not in target else ""
    raise ConfigError(message, hint=f'{choices}Your own is written "package.module:Name"')


def check_target(
    target: str, folders: Sequence[Path | str] = (), shortcuts: Mapping[str, str] | None = None
) -> None:
    """Check that `resolve(target)` can work, without importing the module or its packages.

    Args:
        target: as for `resolve`.
        folders: where to look before sys.path (the config's folder).
        shortcuts: short name -> target.

    Raises:
        ConfigError: no such short name or module, a syntax error in it, or it binds no such name.
    """
    module_name, attribute = split_target(target, shortcuts)
    module = _find(target, module_name, folders)
    name = attribute.partition(".")[0]
    if module.is_folder and name not in submodules(module):
        message = f"{target!r}: {module_name} is a folder without __init__.py, so it has no {name!r}"
        raise ConfigError(message, hint=_nearest_module(module))
    tree = parse(module)
    if tree is None:
        return
    bound = top_level(tree)
    if name in bound.names or bound.is_open or name in submodules(module):
        return
    message = f"{target!r}: {module.source} binds no {name!r}"
    raise ConfigError(message, hint=_nearest_name(name, bound.names))


def check_arguments(
    target: str,
    args: Mapping[str, Any],
    folders: Sequence[Path | str] = (),
    shortcuts: Mapping[str, str] | None = None,
    complete: bool = False,
) -> None:
    """Check that the target takes arguments of these names, as far as its source shows; imports nothing.

    Args:
        complete: it is called with these arguments alone, so that one without a default must be among them.

    Raises:
        ConfigError: a plain function or class whose signature has no such argument, or needs further ones.
    """
    module_name, attribute = split_target(target, shortcuts)
    known = known_arguments(_find(target, module_name, folders), attribute, folders)
    if known is None:
        return
    for name in args:
        if name not in known.known:
            raise ConfigError(f"{target!r} takes no argument {name!r}", hint=did_you_mean(name, known.known))
    missing = sorted(known.required - args.keys()) if complete else []
    if missing:
        raise ConfigError(f"{target!r} needs the argument {', '.join(map(repr, missing))}")


def _find(target: str, module_name: str, folders: Sequence[Path | str]) -> Module:
    try:
        return find_module(module_name, folders)
    except ConfigError as error:
        raise ConfigError(f"{target!r}: {error.what}", cause=error.cause, hint=error.hint) from None


def _nearest_name(name: str, choices: Any) -> str:
    public = [choice for choice in choices if not choice.startswith("_")]
    return did_you_mean(name, public)


def _nearest_module(module: Module) -> str | None:
    inner = sorted(submodules(module))
    return (
        f"name a module in it: {', '.join(f'{module.name}.{name}' for name in inner[:12])}" if inner else None
    )


def _import(name: str, target: str) -> ModuleType:
    try:
        with span_clock().whole(IMPORT):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _not_found(name, target) from error
        raise _broken(name, target, error) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        raise _broken(name, target, error) from error


def _not_found(name: str, target: str) -> ConfigError:
    try:
        find_module(name)
    except ConfigError as error:
        return ConfigError(f"{target!r}: {error.what}", cause=error.cause, hint=error.hint)
    return ConfigError(f"{target!r}: {name} was found, but importing it fails as if it were missing")


def _broken(name: str, target: str, error: BaseException) -> ConfigError:
    """The error for a failed import, with the line of the user's code that failed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    frames = [frame for frame in frames if frame.filename != importlib.__file__]
    message = f"{target!r}: importing {name} failed: {type(error).__name__}: {error}"
    hint = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        close = nearest(error.name, sys.stdlib_module_names, cutoff=0.8)
        hint = f"install the distribution that holds {error.name}" + (f", or import {close}" if close else "")
    if not frames:
        # A syntax error has no frame of its own; its text names the file and line.
        return ConfigError(message, hint=hint)
    ends = [frames[0]] if len(frames) == 1 else [frames[0], frames[-1]]
    cause = "; then ".join(f"{frame.filename}:{frame.lineno}: {frame.line}" for frame in ends)
    return ConfigError(message, cause=cause, hint=hint)
