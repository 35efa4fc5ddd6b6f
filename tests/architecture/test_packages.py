"""Import rules: the table in pyproject.toml against every import of every file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from source_tree import LAUNCHERS, PACKAGE, ROOT, Import, folders, imports, package_of, shipped, table, tree

# Adapters: the constant that marks one (as the registry finds it), and what else a file of the kind
# may import at the top. Everything else, above all its own library, it imports inside functions.
KINDS = {
    "LAUNCHER": (LAUNCHERS, {"pydantic"}),
    "STRATEGY": (PACKAGE / "strategies", {"pydantic", "torch"}),
    "SINK": (PACKAGE / "observability", {"pydantic"}),
    "CALLBACK": (PACKAGE / "trainer" / "callbacks", {"torch"}),
}
# Packages with such names collect unrelated code, which everything then imports.
NAMELESS = {"utils", "util", "helpers", "helper", "common", "core", "misc", "tools"}


def target_package(found: Import) -> str | None:
    """The package that an import reaches; None for what is not ours, and for the package's version."""
    first, _, rest = found.module.partition(".")
    if first == "launchers":
        return "launchers"
    if first != "dist_train" or not rest or rest == "__version__":
        return None
    return rest.partition(".")[0]


def packages_on_disk() -> set[str]:
    """Every folder and file directly below dist_train, and launchers."""
    return {package_of(path) for path in shipped()} - {"dist_train"}


def adapters(constant: str) -> list[Path]:
    """Files of a kind's folder that bind its constant."""
    folder, _ = KINDS[constant]
    return [path for path in sorted(folder.glob("*.py")) if constant in bound_names(path)]


def bound_names(path: Path) -> set[str]:
    """Names that a file binds at top level."""
    found = set()
    for node in tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_package_has_a_row_and_every_row_a_package() -> None:
    assert sorted(packages_on_disk()) == sorted(table()), "give each package a row in pyproject.toml"


def test_the_table_is_ordered() -> None:
    above: set[str] = set()
    for package, allowed in table().items():
        assert set(allowed) <= above, f"{package} may only import packages of rows above its own"
        above.add(package)


def test_a_package_imports_only_what_its_row_names() -> None:
    wrong = []
    for path in shipped():
        package = package_of(path)
        if package == "dist_train":
            continue  # lazy: a test below
        for found in imports(path):
            reached = target_package(found)
            if reached is not None and reached != package and reached not in table()[package]:
                wrong.append(f"{found}  ({package} may import {', '.join(table()[package]) or 'nothing'})")
    assert not wrong, "\n".join(wrong)


def test_a_folder_within_a_package_imports_only_folders_before_it() -> None:
    wrong = []
    for parent, order in folders().items():
        on_disk = {path.parent.name for path in (ROOT / parent).glob("*/__init__.py")}
        assert on_disk == set(order), f"name each folder of {parent} in pyproject.toml"
        prefix = parent.replace("/", ".") + "."
        for number, folder in enumerate(order):
            after = {prefix + later for later in order[number + 1 :]}
            for path in (ROOT / parent / folder).glob("*.py"):
                wrong += [str(found) for found in imports(path) if within(found.module, after)]
    assert not wrong, "\n".join(wrong)


def within(module: str, packages: set[str]) -> bool:
    """Whether a module is one of the packages, or in one."""
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def test_the_root_imports_its_packages_only_for_type_checkers() -> None:
    path = PACKAGE / "__init__.py"
    checked = {
        id(node)
        for block in tree(path).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    at_head = [node for node in tree(path).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in at_head for alias in node.names} | {
        node.module or "" for node in at_head if isinstance(node, ast.ImportFrom)
    }
    assert checked
    assert [name for name in names if name.startswith("dist_train")] == ["dist_train.lazy_exports"]


def test_nothing_under_dist_train_imports_launchers() -> None:
    wrong = [
        str(f) for path in PACKAGE.rglob("*.py") for f in imports(path) if target_package(f) == "launchers"
    ]
    assert not wrong, "the registry loads launchers by their folder:\n" + "\n".join(wrong)


def test_imports_are_absolute() -> None:
    wrong = [str(found) for path in shipped() for found in imports(path) if found.module.startswith(".")]
    assert not wrong, "\n".join(wrong)


def test_a_lazy_table_names_modules_of_its_own_package() -> None:
    wrong = []
    for path in shipped():
        if path.name != "__init__.py" or package_of(path) == "dist_train":
            continue
        prefix = f"dist_train.{package_of(path)}."
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC":
                modules = set(ast.literal_eval(node.value).values())
                wrong += [f"{path.relative_to(ROOT)}: {m}" for m in modules if not m.startswith(prefix)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("constant", KINDS)
def test_adapters_do_not_import_each_other(constant: str) -> None:
    files = adapters(constant)
    assert files, f"no file binds {constant}"
    package = files[0].parent.relative_to(ROOT).as_posix().replace("/", ".")
    siblings = {path: f"{package}.{path.stem}" for path in files}
    wrong = [
        str(found)
        for path in files
        for found in imports(path)
        for other, module in siblings.items()
        if other != path and (found.module == module or found.module.startswith(f"{module}."))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("constant", KINDS)
def test_adapters_import_their_own_library_inside_functions(constant: str) -> None:
    _, allowed = KINDS[constant]
    known = sys.stdlib_module_names | allowed | {"dist_train"}
    wrong = [
        str(found)
        for path in adapters(constant)
        for found in imports(path)
        if not found.inside
        and found.module.partition(".")[0] not in known
        # an adapter of several parts keeps them in a folder of its own name
        and not found.module.startswith(f"{path.parent.name}._{path.stem}")
    ]
    assert not wrong, "at the head of the file:\n" + "\n".join(wrong)


def test_no_package_for_everything() -> None:
    places = [ROOT / name for name in ("dist_train", "launchers", "tests", "benchmarks", "examples")]
    paths = [path for place in places for path in place.rglob("*") if path.is_dir() or path.suffix == ".py"]
    wrong = [str(path.relative_to(ROOT)) for path in paths if path.stem in NAMELESS]
    assert not wrong, f"say what it is about: {wrong}"


def test_tests_are_no_package_and_have_unique_names() -> None:
    # The only package there; no installed distribution has a module `cluster`.
    emulator = ROOT / "tests" / "k8s" / "cluster"
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    files = [path for path in files if not path.is_relative_to(emulator)]
    assert not [path for path in files if path.name == "__init__.py"], "a package there hides real ones"
    names = [path.name for path in files]
    assert not [name for name in set(names) if names.count(name) > 1], "pytest cannot tell them apart"
