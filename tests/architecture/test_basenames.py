"""A module's name says what it holds, and says it once: no basename occurs twice, no package is a drawer."""

from __future__ import annotations

from collections import Counter

from source_tree import PACKAGE, ROOT, shipped

# Python's own names, the two commands' main, and verbs: a verb's module is called as the command is.
SHARED = {"__init__", "__main__", "main"}
VERBS = PACKAGE / "cli" / "verbs"
# A folder with more modules than this is searched by reading, not by name.
LIMIT_MODULES = 25


def test_no_basename_occurs_twice() -> None:
    names = Counter(path.stem for path in shipped() if path.parent != VERBS)
    twice = sorted(name for name, count in names.items() if count > 1 and name not in SHARED)
    assert not twice, f"give each a name of its own: {', '.join(twice)}"


def test_no_folder_is_a_drawer() -> None:
    sizes = Counter(path.parent for path in shipped())
    wrong = [f"{folder.relative_to(ROOT)}: {n} modules" for folder, n in sizes.items() if n > LIMIT_MODULES]
    assert not wrong, "make packages of them: " + ", ".join(wrong)
