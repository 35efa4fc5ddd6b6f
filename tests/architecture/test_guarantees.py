"""docs/guarantees.md is what the tests' markers say, and each test on it is one that CI runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from source_tree import ROOT

# A skip that only says when; `require` in the body is the one way to leave a test out.
_SKIPS = ("skip", "skipif", "xfail")
_CLAIM = '@pytest.mark.proves("It is so")\n'


def _load() -> ModuleType:
    path = ROOT / "docs" / "reference_pages" / "guarantees.py"
    spec = importlib.util.spec_from_file_location("guarantees", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


guarantees = _load()


@cache
def ours() -> list[Any]:
    """Our own proving tests; to parse all files takes a second."""
    return list(guarantees.proving_tests())


def problem_of(test) -> str | None:  # type: ignore[no-untyped-def]
    """Why a test proves nothing, if so: it is no test, or a marker leaves it out."""
    if not test.names[-1].startswith("test_"):
        return f"{test.names[-1]} is no test function"
    skipped = [mark for mark in test.marks if any(f"mark.{word}" in mark for word in _SKIPS)]
    return f"it is decorated with {', '.join(skipped)}" if skipped else None


def test_the_committed_page_is_up_to_date() -> None:
    expected = guarantees.page(ours())
    hint = "run: python docs/reference_pages/guarantees.py"
    assert guarantees.PAGE.read_text(encoding="utf-8") == expected, hint


def test_every_proving_test_is_run() -> None:
    tests = ours()
    assert len(tests) > 80
    wrong = {test.test_id: problem for test in tests if (problem := problem_of(test))}
    assert not wrong


def test_ci_runs_every_target_but_the_soaks() -> None:
    ci = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    targets = {target.removeprefix("make ") for test in ours() for target in test.targets}
    assert targets - set(ci) == {"soak"}


def test_every_claim_stands_alone() -> None:
    fragments = [
        test.test_id
        for test in ours()
        if re.match(r"(The same|So |Nor |That |Such )", test.claim) or not test.claim[0:1].strip()
    ]
    assert not fragments


@pytest.mark.parametrize(
    ("source", "targets", "problem"),
    [
        (f"{_CLAIM}def test_a(): pass", ["make test"], None),
        (f"class TestA:\n  {_CLAIM}  def test_a(self): pass", ["make test"], None),
        (f"{_CLAIM}@pytest.mark.proof\ndef test_a(): pass", ["make proof"], None),
        (f"{_CLAIM}@pytest.mark.first_cases(1)\ndef test_a(n): pass", ["make test", "make proof"], None),
        (f"pytestmark = [pytest.mark.soak]\n{_CLAIM}def test_a(): pass", ["make soak"], None),
        (f"{_CLAIM}def helper(): pass", ["make test"], "no test function"),
        (f"{_CLAIM}@pytest.mark.skip\ndef test_a(): pass", ["make test"], "pytest.mark.skip"),
        (f"pytestmark = pytest.mark.skipif(True)\n{_CLAIM}def test_a(): pass", ["make test"], "skipif"),
        (
            f"{_CLAIM}@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.soak)])\n"
            "def test_a(n): pass",
            ["make test", "make soak"],
            None,
        ),
    ],
)
def test_a_false_proof_is_noticed(
    tmp_path: Path, source: str, targets: list[str], problem: str | None
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(source)
    [test] = guarantees.proving_tests(tmp_path)
    assert test.targets == targets
    found = problem_of(test)
    assert (found is None) if problem is None else (found is not None and problem in found)
