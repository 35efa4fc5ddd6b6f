"""docs/guarantees.md, from the markers `@pytest.mark.proves("claim", limits="…")` of the tests.

    python docs/reference_pages/guarantees.py     # write the page again

The tests are parsed, not imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
HEAD = """\
# Guarantees

<!-- Written by docs/reference_pages/guarantees.py from the markers of the tests; do not edit. -->

Each row is a claim, its limits, and the tests that prove it. Continuous integration runs `make test` and
`make proof`; `make soak` takes many minutes more and is run by hand.

No row was run on a GPU unless its limits say so. Sections name the environment that all of their rows were
run in.
"""
# Heading, what all its rows have in common, and the tests that belong to it; the first that fits.
SECTIONS = (
    (
        "Whole runs on this machine",
        "Real processes, CPU/gloo; several nodes are several agents on one machine.",
        r"tests/multiprocess/",
    ),
    ("Sample order", "", r"tests/unit/data/"),
    ("Checkpoints", "", r"tests/unit/checkpoint/"),
    ("Slurm", "A real Slurm 22.05 whose nodes are daemons on one machine. CPU/gloo.", r"slurm"),
    (
        "Kubernetes",
        "The tests emulate the API server and the controllers, by the rules of their sources; pods are real "
        "processes in namespaces, or real containers where the row says so. CPU/gloo.",
        r"k8s|kubernetes",
    ),
    ("Everything else", "", r""),
)
_TARGETS = {"soak": "make soak", "proof": "make proof"}


@dataclass(frozen=True)
class ProvingTest:
    """A test with the claim that it proves; `marks` are its decorators, its class's and its module's."""

    path: str
    names: tuple[str, ...]
    claim: str
    limits: str
    marks: tuple[str, ...]
    parameter_marks: frozenset[str] = frozenset({""})

    @property
    def test_id(self) -> str:
        """As pytest names it."""
        return "::".join((self.path, *self.names))

    @property
    def targets(self) -> list[str]:
        """The make targets that run it: several where its parameters have markers of their own."""
        own = next((_TARGETS[mark] for mark in _TARGETS if self.has(mark)), None)
        if own is None and self.has("first_cases"):
            return ["make test", "make proof"]
        return [own] if own else [_TARGETS.get(mark, "make test") for mark in sorted(self.parameter_marks)]

    def has(self, mark: str) -> bool:
        """Whether a decorator is this marker; one parameter's marker does not count."""
        return any(re.match(rf"(pytest\.)?mark\.{mark}\b", each) for each in self.marks)


def proving_tests(root: Path = ROOT) -> list[ProvingTest]:
    """Every test with the marker, in the order of the files."""
    return [test for path in sorted((root / "tests").rglob("test_*.py")) for test in _of_file(root, path)]


def _of_file(root: Path, path: Path) -> Iterator[ProvingTest]:
    module = ast.parse(path.read_text(encoding="utf-8"), str(path))
    yield from _of_scope(str(path.relative_to(root)), (), _marks_of_module(module), module.body)


def _of_scope(
    path: str, names: tuple[str, ...], marks: tuple[str, ...], body: list[ast.stmt]
) -> Iterator[ProvingTest]:
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inner = (*marks, *(ast.unparse(decorator) for decorator in node.decorator_list))
        if isinstance(node, ast.ClassDef):
            yield from _of_scope(path, (*names, node.name), inner, node.body)
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.proves":
                limits = next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "limits"), "")
                claim, where = ast.literal_eval(call.args[0]), (*names, node.name)
                yield ProvingTest(path, where, claim, limits, inner, _parameter_marks(node))


def _parameter_marks(test: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Which of soak and proof its parameters have; "" for those that have neither."""
    found = {""}
    for call in test.decorator_list:
        is_parametrize = isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.parametrize")
        if is_parametrize and isinstance(call.args[1], ast.List):
            texts = [ast.unparse(value) for value in call.args[1].elts]
            marks = {next((m for m in _TARGETS if f"mark.{m}" in text), "") for text in texts}
            found = marks if found == {""} else found | marks
    return frozenset(found)


def _marks_of_module(module: ast.Module) -> tuple[str, ...]:
    """The markers of `pytestmark`."""
    found: list[str] = []
    for node in module.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target) == "pytestmark" for target in targets):
                values = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                found += map(ast.unparse, values)
    return tuple(found)


def page(tests: list[ProvingTest]) -> str:
    """The whole page."""
    left = list(tests)
    parts = [HEAD]
    for title, note, pattern in SECTIONS:
        rows = [test for test in left if re.search(pattern, test.path)]
        left = [test for test in left if test not in rows]
        if rows:
            parts.append("\n".join([f"## {title}", "", *([note, ""] if note else []), _table(rows)]))
    return "\n".join(parts)


def _table(tests: list[ProvingTest]) -> str:
    by_claim: dict[str, list[ProvingTest]] = {}
    for test in tests:
        by_claim.setdefault(test.claim, []).append(test)
    lines = ["| claim | limits | proved by | run by |", "|---|---|---|---|"]
    for claim, proofs in by_claim.items():
        limits = "; ".join(dict.fromkeys(proof.limits for proof in proofs if proof.limits))
        links = "<br>".join(f"[{proof.names[-1]}](../{proof.path})" for proof in proofs)
        targets = ", ".join(dict.fromkeys(f"`{target}`" for proof in proofs for target in proof.targets))
        lines.append(f"| {_cell(claim)} | {_cell(limits)} | {links} | {targets} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(proving_tests()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
