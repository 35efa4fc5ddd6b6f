"""The README is true: each proof it names exists and is run, and its exit codes are ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, tree

README = ROOT / "README.md"
_TEST_ID = re.compile(r"`(tests/[^`\s]+\.py::[^`\s]+)`")
# A skip that only says when; `require` in the body is the one way to leave a test out.
_SKIPS = ("skip", "skipif", "xfail")


def section(title: str) -> str:
    """The text below a heading of the second level."""
    text = README.read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(title)}\s*$\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        pytest.fail(f"README.md has no heading '## {title}'", pytrace=False)
    return match[1]


def rows(title: str) -> list[dict[str, str]]:
    """The section's table, a dict per row."""
    lines = [line.strip() for line in section(title).splitlines() if line.strip().startswith("|")]
    # A bar inside a cell is written \|.
    cells = [[c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    if len(cells) < 3:
        pytest.fail(f"'## {title}' of README.md has no table with rows", pytrace=False)
    head = [cell.lower() for cell in cells[0]]
    return [dict(zip(head, row, strict=True)) for row in cells[2:]]


def problem_of(test_id: str) -> str | None:
    """What is wrong with a test id, if anything: no such file, no such function, skipped."""
    name, *path = test_id.split("::")
    file = ROOT / name
    if not file.is_file():
        return "there is no such file"
    scope: ast.AST = tree(file)
    marks = marks_of_module(tree(file))
    for part in path:
        wanted = part.partition("[")[0]
        found = next(
            (node for node in getattr(scope, "body", []) if getattr(node, "name", "") == wanted), None
        )
        if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return f"{name} defines no {wanted}"
        scope = found
        marks += [ast.unparse(decorator) for decorator in found.decorator_list]
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) or not scope.name.startswith("test_"):
        return "it is no test function"
    skipped = [mark for mark in marks if any(re.search(rf"\bmark\.{word}\b", mark) for word in _SKIPS)]
    if skipped:
        return f"it is decorated with {', '.join(skipped)}"
    long = next((word for word in ("proof", "soak") if any(f"mark.{word}" in mark for mark in marks)), None)
    return f"only `make {long}` runs it" if long else None


def marks_of_module(module: ast.Module) -> list[str]:
    """`pytestmark`, and a skip of the whole module."""
    return [
        ast.unparse(node)
        for node in module.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "pytestmark" in ast.unparse(node)
    ]


def test_every_claim_names_tests_that_exist_and_are_run() -> None:
    wrong = []
    for row in rows("What is proved"):
        assert list(row) == ["claim", "test", "limits"], "the columns are: claim | test | limits"
        ids = _TEST_ID.findall(row["test"])
        if not ids:
            wrong.append(f"{row['claim']}: no test id in backticks, such as `tests/unit/x/test_y.py::test_z`")
        for test_id in ids:
            problem = problem_of(test_id)
            by = re.fullmatch(r"only (`make \w+`) runs it", problem or "")
            excused = by is not None and by[1] in row["limits"]
            if problem and not excused:
                wrong.append(f"{test_id}: {problem}")
    assert not wrong, "\n".join(wrong)


def test_the_exit_codes_are_ours() -> None:
    from dist_train.errors import ExitCode

    told = {}
    for row in rows("Exit codes"):
        for code in re.findall(r"\d+", row["code"]):
            told[int(code)] = row.get("name", "").strip("`")
    assert sorted(told) == sorted(int(code) for code in ExitCode)
    wrong = {code: name for code, name in told.items() if name and ExitCode(code).name != name}
    assert not wrong, f"other names than in errors.ExitCode: {wrong}"


def test_its_local_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", README.read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / link.partition("#")[0]).exists()]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def test_a(): pass", None),
        ("def test_b(): pass", "defines no test_a"),
        ("import pytest\n@pytest.mark.skip\ndef test_a(): pass", "decorated with pytest.mark.skip"),
        ("import pytest\npytestmark = pytest.mark.skipif(True, reason='')\ndef test_a(): pass", "skipif"),
        ("import pytest\n@pytest.mark.proof\ndef test_a(): pass", "make proof"),
        ("import pytest\n@pytest.mark.soak\ndef test_a(): pass", "make soak"),
    ],
)
def test_a_false_proof_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str | None
) -> None:
    (tmp_path / "test_it.py").write_text(source)
    monkeypatch.setattr("test_readme.ROOT", tmp_path)
    found = problem_of("test_it.py::test_a")
    assert (found is None) if problem is None else (found is not None and problem in found)
