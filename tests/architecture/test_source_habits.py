"""Rules for the source: file size, docstrings, which modules may print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from source_tree import PACKAGE, ROOT, package_of, shipped, tree

LIMIT_LINES = 400
# They write for people: before, around and after the job, and on rank 0's console. (So does every
# __main__.py: it is a command.)
MAY_PRINT = {"cli", "agent", "entrypoint", "trainer"}
CONSOLES = {PACKAGE / "observability" / "console.py"}
# Only to stderr: the supervisor in the foreground, and a rank that is being ended, when loggers may not
# work any more.
MAY_WARN = {
    ROOT / "launchers" / "local.py",
    ROOT / "launchers" / "slurm.py",
    ROOT / "launchers" / "_slurm" / "sbatch_submission.py",
    ROOT / "launchers" / "_kubernetes" / "stderr_messages.py",
    PACKAGE / "distributed" / "group_teardown" / "deadlines.py",
    PACKAGE / "resilience" / "watchdog.py",
}


def python_files() -> Iterator[Path]:
    """All Python files, tests included."""
    for folder in ("dist_train", "launchers", "tests", "benchmarks", "examples", ".ci"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    wrong = [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > LIMIT_LINES]
    assert not wrong, f"more than {LIMIT_LINES} lines: " + ", ".join(wrong)


def test_only_modules_that_write_for_people_print() -> None:
    wrong = []
    for path in shipped():
        if package_of(path) in MAY_PRINT or path in CONSOLES or path.name == "__main__.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                to_stderr = any(
                    word.arg == "file" and "stderr" in ast.unparse(word) for word in node.keywords
                )
                if not (path in MAY_WARN and to_stderr):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, "use a logger: " + ", ".join(wrong)


def test_public_names_have_a_docstring() -> None:
    wrong = []
    for path in shipped():
        where = path.relative_to(ROOT)
        if not ast.get_docstring(tree(path)):
            wrong.append(f"{where}: the module")
        for node in tree(path).body:
            public = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            if public and "overload" in map(ast.unparse, node.decorator_list):
                continue  # the implementation has it
            if public and not node.name.startswith("_") and not ast.get_docstring(node):
                wrong.append(f"{where}:{node.lineno}: {node.name}")
    assert not wrong, "\n".join(wrong)


def test_every_module_postpones_annotations() -> None:
    line = "from __future__ import annotations"
    wrong = [
        str(path.relative_to(ROOT))
        for path in shipped()
        if line not in path.read_text(encoding="utf-8")
        and any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)) for node in tree(path).body)
    ]
    assert not wrong, f"{line!r} is missing in {wrong}"
