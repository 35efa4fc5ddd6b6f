"""Documents are true: their links and make targets exist, their exit codes are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from retired_words import EVERYWHERE
from source_tree import ROOT

from dist_train.errors import ExitCode

EXIT_CODES = ROOT / "docs" / "exit-codes.md"
# What `make docs` generates; git does not have it, and the documentation builder checks it.
GENERATED = (ROOT / "docs" / "reference", ROOT / "docs" / "repository")
DOCUMENTS = sorted(
    path
    for folder in (".", "docs", "examples", "slurm", "k8s", ".github")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
    if not any(path.is_relative_to(generated) for generated in GENERATED)
)
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def table(path: Path) -> list[dict[str, str]]:
    """The first table of a document, a dict per row."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if line.startswith("|")]
    # A bar inside a cell is written \|.
    cells = [[c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_exit_codes_are_those_of_the_code() -> None:
    documented = {int(row["code"]): row["name"].strip("`") for row in table(EXIT_CODES)}
    assert documented == {int(code): code.name for code in ExitCode}


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_is_short_and_begins_with_its_title(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert lines[0].startswith("# dist-train")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_local_links_lead_somewhere(path: Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(path.read_text(encoding="utf-8"))]
    missing = [link for link in links if not exists(path, link)]
    assert not missing


def exists(path: Path, link: str) -> bool:
    """Whether a link of a document leads to a file, or to a page that is generated."""
    target = (path.parent / link).resolve()
    return target.exists() or any(target.is_relative_to(generated) for generated in GENERATED)


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    for path in (*DOCUMENTS, workflow, ROOT / ".ci" / "run"):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?:^ *|`|run: )make ([a-z0-9-]+)", text, re.MULTILINE)
        assert set(named) <= targets, path
    [matrix] = re.findall(r"target: \[(.*)\]", workflow.read_text(encoding="utf-8"))
    assert set(matrix.split(", ")) <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_fields_words(path: Path) -> None:
    if path.name == "CHANGELOG.md":  # it names the words that were
        return
    # What is quoted is a name, and so is a test.
    text = re.sub(r"`[^`]*`|\[test_\w+\]|\]\([^)]*\)", "", path.read_text(encoding="utf-8"))
    assert not [retired.pattern for retired in EVERYWHERE if retired.found_in(text)]
