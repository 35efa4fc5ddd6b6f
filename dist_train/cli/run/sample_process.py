"""Run dist_train.data in a process of its own: the command line does not import it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dist_train.errors import UnavailableError


def ask_samples(asked: Mapping[str, Any]) -> dict[int, list[int]]:
    """The samples of one step, by rank.

    Args:
        asked: what `python -m dist_train.data` reads.

    Raises:
        UnavailableError: the order cannot be computed, and why.
    """
    command = [sys.executable, "-P", "-m", "dist_train.data"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise UnavailableError(lines[-1].removeprefix("error: "))
    return {int(rank): ids for rank, ids in json.loads(done.stdout)["ranks"].items()}
