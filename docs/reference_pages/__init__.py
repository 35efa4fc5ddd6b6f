"""The generated pages of the documentation: one module per page, each from the code that it describes.

markdown        tables and cells
guarantees      docs/guarantees.md, committed: from the tests' markers
configuration   every key of a config, from the schema
command_line    every verb and option, from click
error_hints     the errors that get a hint, from the agent's table
python_api      the public names, from their docstrings
packages        what each package is and may import, from pyproject.toml and the packages' docstrings
repository      CONTRIBUTING and the READMEs of folders, as pages of the site
"""

from __future__ import annotations

import importlib
from pathlib import Path

# Page below docs/reference -> the module that writes it.
PAGES = {
    "configuration": "configuration",
    "command-line": "command_line",
    "python-api": "python_api",
    "error-hints": "error_hints",
    "packages": "packages",
}


def write(docs: Path) -> None:
    """Write every generated page whose text has changed."""
    folder = docs / "reference"
    folder.mkdir(exist_ok=True)
    for page, module in PAGES.items():
        text = importlib.import_module(f"reference_pages.{module}").page()
        path = folder / f"{page}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
