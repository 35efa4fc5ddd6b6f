"""reference/error-hints.md: errors of torch that get a line with what to do, from the agent's table."""

from __future__ import annotations

import re

from dist_train.agent.failures.error_hints import TABLE
from reference_pages.markdown import escaped, table

HEAD = """\
# Error hints

When a rank fails with one of these errors, the report ends with `hint:` and what to do about it. The first
pattern that the text of the exception (or of what it came from) matches is taken. The hint is made in the
process that failed: the tensors, counts and sizes in it are those of that process, here those of the
machine that built this page.
"""
_EXAMPLES = {"device": "cuda: 0"}


class _AnyMatch:
    """Stands for the match of a pattern whose groups have these values."""

    def group(self, name: str = "") -> str:
        return _EXAMPLES.get(name, "")


def page() -> str:
    """The whole page."""
    rows = [(_readable(pattern), escaped(hint(RuntimeError(), _AnyMatch()))) for pattern, hint in TABLE]
    return f"{HEAD}\n{table(('error', 'hint'), rows)}"


def _readable(pattern: str) -> str:
    """A regular expression as text: its groups' names and escapes are noise here."""
    text = re.sub(r"\(\?P<\w+>(.*?)\)", r"\1", pattern)
    text = text.replace(r"\(", "(").replace(r"\)", ")").replace(".*", "…")
    return f"`{text}`"
