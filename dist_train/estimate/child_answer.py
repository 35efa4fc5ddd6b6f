"""The answer of a process that the command line asks: one JSON object on stdin, and one on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def answer_by(respond: Callable[[Mapping[str, Any]], tuple[int, dict[str, Any]]]) -> int:
    """Read the question, print what `respond` makes of it; return the exit code.

    Args:
        respond: question -> exit code and answer. Modules are imported from the question's `folder` first.
    """
    asked: dict[str, Any] = json.load(sys.stdin)
    # What the user's modules print would break the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, asked["folder"])
    code, record = respond(asked)
    with answer:
        json.dump(record, answer)
    return code
