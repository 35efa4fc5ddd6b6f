"""What the installed torch is built for, without importing it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

_HIP = re.compile(r"^hip\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def hip_version() -> str | None:
    """The version of HIP that torch is built with, for AMD's GPUs; None for another build, or no torch."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    return hip_version_of(Path(found.origin).with_name("version.py"))


def hip_version_of(version_file: Path) -> str | None:
    """The same of one torch/version.py."""
    try:
        match = _HIP.search(version_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return match[1] if match else None
