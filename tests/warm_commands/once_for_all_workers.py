"""What takes long and all pytest workers only read: the first that needs it makes it, the others wait."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def once_for_all_workers(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """Return what `make` has returned in one of the workers, after a round trip as JSON.

    Args:
        name: one for each thing that is made.
        make: called with an empty folder.
    """
    own = factory.getbasetemp()
    # The parent of a single process's folder is of all sessions: what an older one has made there is stale.
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    found = shared / f"{name}.json"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            found.write_text(json.dumps(make(factory.mktemp(name))))
    return json.loads(found.read_text())
