"""Adapters by name: the modules of a folder plus entry points, imported on use.

A new launcher, strategy or sink is one new file: the registry finds it by its public constant,
without importing it. Two adapters of one name are an error that names both.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dist_train.errors import ConfigError
from dist_train.near_names import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PACKAGE_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Kind:
    """One kind of adapter: its folder, entry-point group, and the constant that each file assigns."""

    name: str
    constant: str
    package: str
    folder: Path
    group: str


KINDS = {
    kind.name: kind
    for kind in (
        # `launchers` is installed beside dist_train; it is found by folder, never by sys.path,
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
        # Named by URL scheme.
        Kind(
            "checkpoint_storages",
            "STORAGE",
            "dist_train.checkpoint.store",
            _PACKAGE_FOLDER / "checkpoint" / "store",
            "dist_train.checkpoint_storages",
        ),
        Kind(
            "callbacks",
            "CALLBACK",
            "dist_train.trainer.callbacks",
            _PACKAGE_FOLDER / "trainer" / "callbacks",
            "dist_train.callbacks",
        ),
    )
}


def names(kind: str) -> list[str]:
    """Every registered name of a kind, sorted."""
    return sorted(_owners(kind))


def load(kind: str, name: str) -> object:
    """Import the adapter called `name` and return its public constant.

    Raises ConfigError for an unknown name (with the nearest), for a name with two owners, and where the
    module of another distribution cannot be imported.
    """
    owners = _owners(kind)
    if name not in owners:
        near = nearest(name, owners)
        raise ConfigError(
            f"no {_singular(kind)} is called {name!r}",
            cause=f"there are: {', '.join(sorted(owners))}",
            hint=f"did you mean {near!r}?" if near else None,
        )
    owner = owners[name]
    if not isinstance(owner, Path):
        return _load_entry_point(kind, owner)
    return getattr(_import_owned(KINDS[kind], owner), KINDS[kind].constant)


def _load_entry_point(kind: str, entry: EntryPoint) -> object:
    try:
        found = entry.load()
        return getattr(found, KINDS[kind].constant) if isinstance(found, ModuleType) else found
    except Exception as error:  # another distribution's module may raise anything when it is imported
        raise ConfigError(
            f"the {_singular(kind)} {entry.name!r} cannot be loaded: {type(error).__name__}: {error}",
            cause=f"its entry point is {_describe(entry)}",
            hint="reinstall or repair that distribution",
        ) from error


def _singular(kind: str) -> str:
    return "strategy" if kind == "strategies" else kind[:-1].replace("_", " ")


def target(kind: str, name: str) -> str:
    """`package.module:Name` of a registered adapter, from its file or entry point; imports nothing."""
    owner, constant = _owners(kind)[name], KINDS[kind].constant
    if not isinstance(owner, Path):
        return owner.value if owner.attr else f"{owner.module}:{constant}"
    value = _bound_to(owner, constant)
    return f"{KINDS[kind].package}.{owner.stem}:{value.id if isinstance(value, ast.Name) else constant}"


def missing(kind: str, name: str) -> dict[str, str]:
    """Packages that the adapter `name` needs and that are not installed -> how to install each.

    Our adapters declare them by a literal, `REQUIRES = {"package": "pip install …"}`, which is read
    without an import.
    """
    owner = _owners(kind).get(name)
    if not isinstance(owner, Path):
        return {}
    wanted = _literal(owner, "REQUIRES") or {}
    return {package: how for package, how in wanted.items() if importlib.util.find_spec(package) is None}


def declares(kind: str, name: str, constant: str) -> bool:
    """Whether our adapter `name` declares `CONSTANT = True`, read without an import; another's never does."""
    return declared(kind, name, constant) is True


def declared(kind: str, name: str, constant: str) -> Any:
    """The literal that our adapter `name` binds to the constant, read without an import; None without one."""
    owner = _owners(kind).get(name)
    return _literal(owner, constant) if isinstance(owner, Path) else None


def companion(kind: str, name: str, part: str) -> ModuleType | None:
    """The module `_NAME/NAME_PART` beside our adapter NAME, imported without it; None where there is none.

    Raises KeyError for an unknown name.
    """
    owner = _owners(kind)[name]
    if not isinstance(owner, Path) or not (owner.parent / f"_{name}" / f"{name}_{part}.py").exists():
        return None
    if kind == "launchers":
        _import_launchers(KINDS[kind])
    return importlib.import_module(f"{KINDS[kind].package}._{name}.{name}_{part}")


def entry_points(group: str) -> Iterable[EntryPoint]:
    """As importlib.metadata's, which is loaded only if a distribution may have the group.

    It takes longer to load than all else that --help needs.
    """
    if not _may_be_installed(group):
        return ()
    import importlib.metadata

    return importlib.metadata.entry_points(group=group)


def _may_be_installed(group: str) -> bool:
    """Whether the group is in an entry_points.txt, or in a place that only importlib.metadata can read."""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return True
    return any(_may_hold(place or ".", group.encode()) for place in dict.fromkeys(sys.path))


def _may_hold(place: str, group: bytes) -> bool:
    if not os.path.isdir(place):
        return os.path.exists(place)  # an archive
    try:
        names = os.listdir(place)
    except OSError:
        return False
    for name in names:
        if name.endswith(".egg"):
            return True
        if name.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                    if group in file.read():
                        return True
            except OSError:
                continue
    return False


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
                hint="uninstall one of the two distributions, or rename its entry point",
            )
        found[entry.name] = entry
    return found


def _describe(owner: Path | EntryPoint) -> str:
    if isinstance(owner, Path):
        return f"dist-train's own {owner.name}"
    distribution = owner.dist.name if owner.dist is not None else "an unknown distribution"
    return f"{owner.value} of {distribution}"


def _assigns(path: Path, constant: str) -> bool:
    """Whether the file binds `constant` at top level; parsed, since adapters may be slow to import."""
    return _bound_to(path, constant) is not None


def _literal(path: Path, constant: str) -> Any:
    value = _bound_to(path, constant)
    return None if value is None else ast.literal_eval(value)


def _bound_to(path: Path, constant: str) -> ast.expr | None:
    text = path.read_text(encoding="utf-8")
    if constant not in text:
        return None  # as in most files of a folder: to parse them all takes 20 ms
    for node in ast.parse(text).body:
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
    package = _import_launchers(kind)
    return _import_spec(
        f"launchers.{path.stem}", PathFinder.find_spec(f"launchers.{path.stem}", package.__path__)
    )


def _import_launchers(kind: Kind) -> ModuleType:
    return _import_spec("launchers", PathFinder.find_spec("launchers", [str(kind.folder.parent)]))


def _import_spec(name: str, spec: ModuleSpec | None) -> ModuleType:
    if spec is None or spec.loader is None:
        raise ConfigError(f"dist-train's module {name} is missing", hint="reinstall dist-train")
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
