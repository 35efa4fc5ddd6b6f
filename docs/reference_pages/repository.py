"""Documents that lie elsewhere in the repository, as pages of the site; links between all of them follow."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# File of the repository -> its page below docs/.
PAGES = {
    "examples/README.md": "repository/examples.md",
    "slurm/README.md": "repository/slurm.md",
    "k8s/README.md": "repository/kubernetes.md",
    "CONTRIBUTING.md": "repository/contributing.md",
    "SECURITY.md": "repository/security.md",
    "CHANGELOG.md": "repository/changelog.md",
    "README.md": "index.md",
    "README.zh.md": "start/local.zh.md",
}
_LINK = re.compile(r"\]\((?!https?://|#|mailto:|/)([^)\s#]+)(#[^)\s]*)?\)")


def write() -> None:
    """Write the pages that are copies."""
    for name, page in PAGES.items():
        if page.startswith("repository/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            path = DOCS / page
            path.parent.mkdir(exist_ok=True)
            path.write_text(relinked(text, (ROOT / name).parent, path.parent), encoding="utf-8")


def relinked(text: str, from_folder: Path, to_folder: Path) -> str:
    """Links of a text that was written for one folder, as they must be in another."""

    def link(found: re.Match[str]) -> str:
        target = (from_folder / found[1]).resolve()
        name = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
        target = DOCS / PAGES[name] if name in PAGES else target
        return f"]({os.path.relpath(target, to_folder)}{found[2] or ''})"

    return _LINK.sub(link, text)
