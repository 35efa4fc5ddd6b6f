"""The source uses the field's terms: no retired word in a name, a docstring, a comment or a printed text."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from retired_words import EVERYWHERE, IDENTIFIERS, Retired
from source_tree import ROOT, tree

# Keys and values of records of version 1, which files of earlier releases hold.
RECORD_WORDS = {"victims", "victim", "mend"}
FOLDERS = ("dist_train", "launchers", "tests", "examples", "benchmarks", ".ci")


# Any of the words, asked for first: few texts have one.
ANY = Retired("|".join(retired.pattern for retired in EVERYWHERE), "", "")
WORD = re.compile(r"\w+")


def files() -> list[Path]:
    """Our Python files, except the list of the words."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if path.name != "retired_words.py"]


def words_of(identifier: str) -> str:
    """`_RunDir_s` -> "run dir s"."""
    return re.sub(r"[_\W]+|(?<=[a-z0-9])(?=[A-Z])", " ", identifier).strip().lower()


@cache
def source_of(path: Path) -> str:
    """The file's text."""
    return path.read_text(encoding="utf-8")


@cache
def tokens(path: Path) -> tuple[tokenize.TokenInfo, ...]:
    """The file's names and comments; slow, so only where the text has a retired word somewhere."""
    source = io.StringIO(source_of(path))
    kept = (tokenize.NAME, tokenize.COMMENT)
    return tuple(token for token in tokenize.generate_tokens(source.readline) if token.type in kept)


@cache
def retired_in_name(name: str) -> tuple[Retired, ...]:
    """The retired words in a name; most names come a hundred times."""
    words = words_of(name)
    return tuple(retired for retired in (*EVERYWHERE, *IDENTIFIERS) if retired.found_in(words))


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Names that the file uses, and its own; none of the file if no word of its text has a retired one."""
    yield 0, path.stem
    if not any(map(retired_in_name, set(WORD.findall(source_of(path))))):
        return
    for token in tokens(path):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and string literals, docstrings among them."""
    for token in tokens(path) if ANY.found_in(source_of(path)) else ():
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in RECORD_WORDS:
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_the_fields_words(folder: str) -> None:
    wrong = []
    for path in files():
        if path.relative_to(ROOT).parts[0] != folder:
            continue
        for line, name in dict.fromkeys(identifiers(path)):
            for retired in retired_in_name(name):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}  ({retired.instead})")
    assert not wrong, f"{len(wrong)} names\n" + "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_are_the_fields_words(folder: str) -> None:
    wrong = []
    for path in files():
        if path.relative_to(ROOT).parts[0] != folder:
            continue
        for line, text in texts(path):
            for retired in EVERYWHERE if ANY.found_in(text) else ():
                if retired.found_in(text):
                    wrong.append(
                        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:80]!r}  ({retired.instead})"
                    )
    assert not wrong, f"{len(wrong)} texts\n" + "\n".join(wrong)
