"""Errors that torch hands on from a loader worker or a replica: with a traceback for a text."""

from __future__ import annotations

import re

_WRAPPED = re.compile(r"Caught (?P<name>\w+) in (?P<place>.+)\.\n(?:Original )?Traceback ")


def innermost(message: str) -> str:
    """The error itself and where it came from, without the traceback; any other text as it is."""
    found = _WRAPPED.match(message)
    if found is None:
        return message
    # The last line that is not indented and names the exception begins its text.
    begins = [*re.finditer(rf"^(?:\w+\.)*{found['name']}\b:? ?", message, re.MULTILINE)]
    if not begins:
        return message
    return f"{message[begins[-1].end() :].strip()} (in {found['place']})".lstrip()
