"""Why a process aborted itself (SIGABRT), by the line that C++ or glibc wrote before it.

faulthandler prints the stacks of all threads after that line, so that it is not among the last lines.
"""

from __future__ import annotations

import re

_BEFORE_AN_ABORT = re.compile(
    r"^(?:terminate called (?:after throwing|without|recursively)|libc\+\+abi: terminating)"
    r"|^  what\(\):"
    r"|: Assertion `.*' failed\.$"
    r"|^(?:double free|(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted (?:size|double-linked))"
    r"|^\*\*\* stack smashing detected"
)
_HINTS = (
    (
        re.compile(r"op\.preamble\.length <= op\.nbytes"),
        "the ranks called one collective with tensors of unlike sizes, or different collectives at the same "
        "time: the stacks in their logs say where each of them was",
    ),
)


def tells_of_abort(line: str) -> bool:
    """Whether a line of stderr says why the process is about to abort; a later one says more."""
    return _BEFORE_AN_ABORT.search(line) is not None


def abort_text(line: str) -> str:
    """Return the reason in such a line: the text of what() without its name."""
    return line.strip().removeprefix("what():").strip()


def hint_for_abort(line: str) -> str | None:
    """Return the hint for such a line, if there is one."""
    return next((hint for pattern, hint in _HINTS if pattern.search(line)), None)
