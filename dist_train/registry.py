"""Name -> adapter: the modules of a folder plus entry points, imported on use.

A new launcher, strategy or sink is one new file: the registry finds it by its public constant,
without importing it. A clash of two owners of one name is an error that names both.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from dist_train.errors import ConfigError

_PACKAGE_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Kind:
    """One kind of adapter: the constant that each file of its folder assigns."""

    name: str
    constant: str
    package: str
    folder: Path
    group: str


KINDS = {
    kind.name: kind
    for kind in (
        # `launchers` lies beside the installed dist_train; it is found by folder, never by sys.path,
        # so that a user's own `launchers/` cannot hide ours.
        Kind(
            "launchers", "LAUNCHER", "launchers", _PACKAGE_FOLDER.parent / "launchers", "dist_train.launchers"
        ),
        Kind(
            "strategies",
            "STRATEGY",
            "dist_train.strategies",
            _PACKAGE_FOLDER / "strategies",
            "dist_train.strategies",
        ),
        Kind(
            "sinks", "SINK", "dist_train.observability", _PACKAGE_FOLDER / "observability", "dist_train.sinks"
        ),
    )
}


def names(kind: str) -> list[str]:
    """Every registered name of a kind, sorted."""
    return sorted(_owners(kind))


def load(kind: str, name: str) -> object:
    """Import the adapter called `name` and return its public constant.

    Raises ConfigError for an unknown name (with the nearest) and for a name with two owners.
    """
    owners = _owners(kind)
    if name not in owners:
        near = difflib.get_close_matches(name, owners, n=1)
        raise ConfigError(
            f"no {kind[:-1] if kind != 'strategies' else 'strategy'} is called {name!r}",
            cause=f"there are: {', '.join(sorted(owners))}",
            mend=f"did you mean {near[0]!r}?" if near else None,
        )
    owner = owners[name]
    if isinstance(owner, EntryPoint):
        return owner.load()
    return getattr(_import_owned(KINDS[kind], owner), KINDS[kind].constant)


def missing(kind: str, name: str) -> dict[str, str]:
    """Packages that the adapter `name` needs and that are not installed here -> how to get each.

    An adapter of ours says it by a literal at its head, `REQUIRES = {"package": "pip install …"}`:
    read, not imported.
    """
    owner = _owners(kind).get(name)
    if not isinstance(owner, Path):
        return {}
    wanted = _literal(owner, "REQUIRES") or {}
    return {package: how for package, how in wanted.items() if importlib.util.find_spec(package) is None}


@cache
def _owners(kind: str) -> dict[str, Path | EntryPoint]:
    found: dict[str, Path | EntryPoint] = {}
    spec = KINDS[kind]
    for path in sorted(spec.folder.glob("*.py")):
        if not path.stem.startswith("_") and _assigns(path, spec.constant):
            found[path.stem] = path
    for entry in entry_points(group=spec.group):
        if entry.name in found:
            raise ConfigError(
                f"two {kind} are called {entry.name!r}",
                cause=f"one is {_describe(found[entry.name])}, the other {_describe(entry)}",
                mend="uninstall one of the two distributions, or rename its entry point",
            )
        found[entry.name] = entry
    return found


def _describe(owner: Path | EntryPoint) -> str:
    if isinstance(owner, Path):
        return f"dist-train's own {owner.name}"
    distribution = owner.dist.name if owner.dist is not None else "an unknown distribution"
    return f"{owner.value} of {distribution}"


def _assigns(path: Path, constant: str) -> bool:
    """Whether the file binds `constant` at top level; read, not imported: adapters may be heavy."""
    return _bound_to(path, constant) is not None


def _literal(path: Path, constant: str) -> Any:
    value = _bound_to(path, constant)
    return None if value is None else ast.literal_eval(value)


def _bound_to(path: Path, constant: str) -> ast.expr | None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == constant for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return node.value
    return None


def _import_owned(kind: Kind, path: Path) -> ModuleType:
    if kind.package != "launchers":
        return importlib.import_module(f"{kind.package}.{path.stem}")
    package = _import_spec("launchers", PathFinder.find_spec("launchers", [str(kind.folder.parent)]))
    return _import_spec(
        f"launchers.{path.stem}", PathFinder.find_spec(f"launchers.{path.stem}", package.__path__)
    )


def _import_spec(name: str, spec: ModuleSpec | None) -> ModuleType:
    if spec is None or spec.loader is None:
        raise ConfigError(f"dist-train's module {name} is missing", mend="reinstall dist-train")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == spec.origin:
        return loaded
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, short = name.rpartition(".")
    if package:
        setattr(sys.modules[package], short, module)  # as an import does
    return module
