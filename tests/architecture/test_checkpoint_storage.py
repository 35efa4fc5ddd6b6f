"""Checkpoints reach their files by CheckpointStorage alone: another storage needs no other change."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source_tree import PACKAGE, ROOT, imports, tree

FOLDER = PACKAGE / "checkpoint"
# Who may use the file system, and for what.
ALLOWED = {
    "store/file.py": "the storage of directories",
    "store/object_store": "the storages of object stores",
    "store/writer_lock.py": "the lock of a directory's writer",
    "format/node_memory.py": "memory that the ranks of a node share, by /proc",
    "weights": "files of other tools, which the user names by their path",
}
MODULES = {"os", "shutil", "tempfile", "io", "glob", "dist_train.rundir.durable_files"}
PATH_METHODS = {
    *("read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob", "rglob", "mkdir", "touch"),
    *("exists", "is_dir", "is_file", "is_symlink", "stat", "lstat", "unlink", "rmdir", "rename", "open"),
}


def touches_files(path: Path) -> list[str]:
    """Imports and calls by which a module reaches the file system itself."""
    found = [
        str(one)
        for one in imports(path)
        if any(one.module == name or one.module.startswith(f"{name}.") for name in MODULES)
    ]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and _is_file_call(node.func):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}()")
    return found


def _is_file_call(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or function.attr not in PATH_METHODS:
        return False
    return not ast.unparse(function.value).endswith("storage")


def allowed(path: Path) -> bool:
    name = path.relative_to(FOLDER).as_posix()
    return any(name == entry or name.startswith(f"{entry}/") for entry in ALLOWED)


def test_only_the_directory_storage_touches_files() -> None:
    wrong = [
        line for path in sorted(FOLDER.rglob("*.py")) if not allowed(path) for line in touches_files(path)
    ]
    assert not wrong, "use CheckpointStorage:\n" + "\n".join(wrong)


@pytest.mark.parametrize("entry", ALLOWED)
def test_each_exception_is_needed(entry: str) -> None:
    place = FOLDER / entry
    paths = [place] if place.is_file() else sorted(place.glob("*.py"))
    assert any(touches_files(path) for path in paths), f"{entry} needs no exception"
