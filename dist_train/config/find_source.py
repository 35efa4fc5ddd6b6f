"""Find a module's source without importing it or the packages that contain it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from dist_train.errors import ConfigError
from dist_train.near_names import nearest


@dataclass(frozen=True)
class Module:
    """A module that exists.

    Args:
        name: its full name.
        source: its file; None where there is nothing to read (built in, compiled, in an archive).
        folders: where its submodules are; empty unless it is a package.
        is_package: whether relative imports in it start from itself.
        is_folder: a folder without `__init__.py` (a namespace package).
    """

    name: str
    source: Path | None
    folders: tuple[str, ...]
    is_package: bool
    is_folder: bool


def find_module(name: str, folders: Sequence[Path | str] = ()) -> Module:
    """Find the module called `name`, in `folders` first, then on this interpreter's path.

    Raises:
        ConfigError: there is none; the hint names the nearest module.
    """
    # A file written a moment ago may be in a folder whose listing is cached.
    importlib.invalidate_caches()
    search: list[str] | None = [str(folder) for folder in folders] + sys.path
    found: ModuleSpec | None = None
    parts = name.split(".")
    for depth, part in enumerate(parts, start=1):
        full = ".".join(parts[:depth])
        found = _find(part, full, search or [])
        if found is None:
            raise _missing(name, full, search or [], folders)
        search = list(found.submodule_search_locations or [])
    assert found is not None
    return _module(name, found)


def submodules(module: Module) -> set[str]:
    """Names of the modules inside a package."""
    return {info.name for info in pkgutil.iter_modules(list(module.folders))}


def parse(module: Module) -> ast.Module | None:
    """The syntax tree of a module's source; None where there is no source.

    Raises:
        ConfigError: the source is not Python; the message has file, line number and line.
    """
    return None if module.source is None else _parse(module.source, module.source.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _parse(path: Path, changed_ns: int) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        line = f"\n    {error.text.rstrip()}" if error.text else ""
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}{line}") from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _find(part: str, full: str, search: list[str]) -> ModuleSpec | None:
    # By its last name only: for a dotted name PathFinder needs the parent imported.
    found = PathFinder.find_spec(part, search)
    if found is not None:
        return found
    # Built-in and frozen modules, and the finders of editable installs. None of them imports anything.
    for finder in sys.meta_path:
        if finder is PathFinder or not hasattr(finder, "find_spec"):
            continue
        path = None if "." not in full else search
        if (found := finder.find_spec(full, path)) is not None:
            return found
    return None


def _module(name: str, spec: ModuleSpec) -> Module:
    is_source = isinstance(spec.loader, SourceFileLoader) and spec.origin is not None
    folders = spec.submodule_search_locations
    return Module(
        name=name,
        source=Path(spec.origin) if is_source and spec.origin else None,
        folders=tuple(folders or ()),
        is_package=folders is not None,
        is_folder=folders is not None and spec.origin is None,
    )


def _missing(name: str, full: str, search: Iterable[str], folders: Sequence[Path | str]) -> ConfigError:
    parent, _, last = full.rpartition(".")
    choices = {info.name for info in pkgutil.iter_modules(list(search))}
    if not parent:
        choices |= sys.stdlib_module_names
    looked = f"in {parent}" if parent else " and ".join([*map(str, folders), "on sys.path"])
    what = f"no module is called {name!r}" if full == name else f"no module is called {name!r} (no {full!r})"
    if last == "py" and parent:
        return ConfigError(what, hint=f"name the module, not the file: {parent}")
    close = nearest(last, choices)
    hint = f"did you mean {f'{parent}.{close}' if parent else close!r}?" if close else None
    return ConfigError(what, cause=f"looked {looked}", hint=hint)
