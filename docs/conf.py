"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "dist-train"
author = "the dist-train authors"
copyright = author
extensions = ["myst_parser"]
exclude_patterns = ["reference_pages"]
root_doc = "index"
html_theme = "furo"
html_title = "dist-train"
html_copy_source = False
highlight_language = "none"
myst_enable_extensions = ["colon_fence", "substitution"]
myst_heading_anchors = 4
# Code that is output or a shell command has no lexer to fail in.
pygments_style = "friendly"


def write_generated_pages(app: Sphinx) -> None:
    """Write the generated pages beside the others; git ignores them."""
    from reference_pages import repository, write

    write(HERE)
    repository.write()


def relink(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead links to documents outside of docs/ to their pages."""
    from reference_pages.repository import relinked

    folder = (HERE / page).parent
    source[0] = relinked(source[0], folder, folder)


def setup(app: Sphinx) -> None:
    """Pages are generated before Sphinx looks for its sources."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("source-read", relink)
