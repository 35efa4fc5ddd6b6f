"""reference/packages.md: each package, what it is, and what it may import."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from reference_pages.markdown import escaped

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
# Packages

From the table in `pyproject.toml` that `tests/architecture` checks, and the docstring of each package. A
package imports only those named in its row. *Light* packages never load torch: a test imports each in a
fresh interpreter.
"""


def page() -> str:
    """The whole page."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        architecture = tomllib.load(file)["tool"]["dist-train"]["architecture"]
    parts = [HEAD]
    for name, imports in architecture["packages"].items():
        light = " *(light)*" if name in architecture["light"] else ""
        allowed = ", ".join(f"`{each}`" for each in imports) or "no other package"
        parts.append(f"## {name}{light}\n\n{_docstring(name)}\n\nImports: {allowed}.\n")
    return "\n".join(parts)


def _docstring(name: str) -> str:
    """First paragraph as text, the map of the modules as it stands."""
    path = ROOT / "launchers" if name == "launchers" else ROOT / "dist_train" / name
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    summary, _, rest = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition(
        "\n\n"
    )
    return escaped(summary) + (f"\n\n```text\n{rest}\n```" if rest.strip() else "")
