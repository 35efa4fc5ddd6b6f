"""The repository's files, packages and imports, read without importing them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "dist_train"
LAUNCHERS = ROOT / "launchers"


@dataclass(frozen=True)
class Import:
    """One imported module with its location; `inside` is True within a function."""

    path: Path
    line: int
    module: str
    inside: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.module}"


@cache
def table() -> dict[str, list[str]]:
    """Package -> the packages that it may import, in the order of pyproject.toml."""
    return _architecture()["packages"]


@cache
def light_packages() -> list[str]:
    """The packages that never load torch."""
    return _architecture()["light"]


@cache
def folders() -> dict[str, list[str]]:
    """Parent folder within a package -> its folders, each importing only those before it."""
    return _architecture()["folders"]


def _architecture() -> dict:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["dist-train"]["architecture"]


@cache
def shipped() -> tuple[Path, ...]:
    """Every source file of dist_train and launchers."""
    return tuple(sorted([*PACKAGE.rglob("*.py"), *LAUNCHERS.rglob("*.py")]))


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def package_of(path: Path) -> str:
    """launchers, or the first part below dist_train; the package itself is `dist_train`."""
    if path.is_relative_to(LAUNCHERS):
        return "launchers"
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "dist_train" if first == "__init__" else first


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file: at the top, inside functions, under TYPE_CHECKING.

    `from dist_train import env` counts as dist_train.env, and `from package import name` as
    package.name too, since the name may be a module.
    """
    nested = {
        id(node)
        for function in ast.walk(tree(path))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree(path)):
        inside = id(node) in nested
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, inside)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(path, node.lineno, f"{base}.{alias.name}", inside)


def fresh_interpreter(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter."""
    argv = [sys.executable, "-P", "-c", code, *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
