"""Rewrite constraints.txt: the newest releases that pyproject.toml allows, all pinned.

Run by `make constraints`. PyTorch stays at the release that CI tests; everything else is upgraded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
HEAD = """\
# Every dependency of dist-train and of all its extras, pinned. Written by `make constraints`; do not edit.
# torch is pinned without its local version: `+cpu` and `+cu128` are the same release.
"""
# Part of every venv, and this project itself.
EXCLUDED = {"pip", "wheel", "dist-train"}


def main() -> None:
    """Install into a fresh venv and write the installed versions."""
    with tempfile.TemporaryDirectory(prefix="dist-train-constraints-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--require-virtualenv"]
        print("[make] installing the newest of everything into a fresh venv (some minutes)", file=sys.stderr)
        subprocess.run([*pip, "install", "-qq", TORCH], check=True)
        # Named again, so that the resolver cannot move it.
        subprocess.run([*pip, "install", "-qq", TORCH, "-e", f"{ROOT}[dev,docs]"], check=True)
        subprocess.run([*pip, "check"], check=True, stdout=sys.stderr)
        # --all: torch needs setuptools, which freeze omits otherwise.
        frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    pins = pinned(frozen)
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"[make] constraints.txt: {len(pins)} packages", file=sys.stderr)


def pinned(frozen: str) -> list[str]:
    """`name==version` lines, sorted; local versions stripped, editable and excluded packages dropped."""
    lines = (line.partition("+")[0] for line in frozen.splitlines() if re.match(r"[A-Za-z0-9][^ @]*==", line))
    kept = (line for line in lines if line.partition("==")[0].lower() not in EXCLUDED)
    return sorted(kept, key=str.lower)


if __name__ == "__main__":
    main()
