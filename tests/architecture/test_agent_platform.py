"""The agent names Slurm, Kubernetes and pods only in agent/platform: everywhere else it asks its Platform."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import PACKAGE, tree

AGENT = PACKAGE / "agent"
NAMES = re.compile(
    r"(?<![a-z])(slurm\w*|sbatch|srun|kubernetes|kubectl|k8s|pods?|volcano|jobset)(?![a-z])", re.IGNORECASE
)
ALLOWED = {
    # A hint is the same text wherever the job runs, and names the option of each launcher.
    AGENT / "failures" / "error_hints.py": {"Kubernetes"},
    # The hint about a missing variable names the folder of hand-usable scripts of each scheduler.
    AGENT / "command_line.py": {"slurm", "k8s"},
}


def files() -> list[Path]:
    """Every file of the agent outside of its platform package."""
    return [path for path in sorted(AGENT.rglob("*.py")) if AGENT / "platform" not in path.parents]


def docstrings(path: Path) -> set[ast.Constant]:
    """The docstrings of a file: reasons may name a product."""
    return {
        node.body[0].value
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and ast.get_docstring(node) is not None
    }


def code(path: Path) -> Iterator[tuple[int, str]]:
    """Identifiers (as words) and string literals."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])", " ", token.string)
    ignored = docstrings(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in ignored:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(AGENT).as_posix())
def test_no_scheduler_is_named_outside_of_the_platform_package(path: Path) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for line, text in code(path)
        for name in NAMES.findall(text)
        if name not in ALLOWED.get(path, set())
    ]
    assert not wrong, "ask the Platform:\n" + "\n".join(wrong)


def test_the_allowed_names_are_still_there() -> None:
    for path, names in ALLOWED.items():
        assert names <= {name for _, text in code(path) for name in NAMES.findall(text)}, path
