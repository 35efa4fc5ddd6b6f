"""CONTRIBUTING.md answers a new maintainer's ten questions with files that exist, and shows every package."""

from __future__ import annotations

import re

from source_tree import ROOT, table

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_ten_questions_are_answered_by_files_that_exist() -> None:
    rows = re.findall(r"^\| (\d+)\. [^|]+\? \| (.+) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    for number, answer in rows:
        files = re.findall(r"\]\(([^)]+\.py)\)", answer)
        assert files, f"question {number} names no file"
        missing = [file for file in files if not (ROOT / file).is_file()]
        assert not missing, f"question {number}: {missing}"


def test_the_tour_visits_every_package() -> None:
    tour = TEXT.partition("## A tour of the code")[2].partition("\n## ")[0]
    # `launchers` lies beside dist_train; single modules are named with their suffix.
    unvisited = [name for name in table() if not re.search(rf"`(dist_train/)?{name}(\.py)?`", tour)]
    assert not unvisited


def test_each_folder_of_tests_is_described() -> None:
    folders = [
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"
    ]
    assert not [name for name in folders if f"| `tests/{name}` |" not in TEXT]
