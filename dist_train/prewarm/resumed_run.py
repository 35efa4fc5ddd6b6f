"""What the record of a run says of its agents, by a look at the words of `dist-train resume`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path("runs")
_RECORD = "job.json"
_RESULT = "result.json"  # of a run that is done: nothing is left to resume


def local_spec(words: Sequence[str]) -> Mapping[str, Any] | None:
    """The job that a local run was launched as; None where another launcher, or nothing, will start agents.

    Args:
        words: those after `resume`. An option's value that is a run's name too is only a wrong guess.
    """
    folder = _folder(words)
    if folder is None or (folder / _RESULT).exists():
        return None
    try:
        record = json.loads((folder / _RECORD).read_bytes())
    except (OSError, ValueError):
        return None  # the verb says so
    if not isinstance(record, dict) or record.get("launcher") != "local":
        return None
    spec = record.get("spec")
    return spec if isinstance(spec, dict) else None


def _folder(words: Sequence[str]) -> Path | None:
    named = [word for word in words if not word.startswith("-")]
    for word in named:
        for folder in (Path(word), _ROOT / word):
            if (folder / _RECORD).is_file():
                return folder
    return _newest()


def _newest() -> Path | None:
    """The newest run of this user, which `resume` takes where no run is named."""
    found = []
    for record in _ROOT.glob(f"*/{_RECORD}"):
        try:
            stat = record.stat()
        except OSError:
            continue
        if stat.st_uid == os.geteuid():
            found.append((stat.st_mtime, record.parent))
    return max(found)[1] if found else None
