"""`--profile [FIRST:LAST]`: an option whose value may be left out, before a target that is not its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dist_train.profiling.profiled_steps import DEFAULT, NONE

_OPTION = "--profile"
# What is meant as steps also where it is none that can be profiled: the error then says why.
_STEPS = re.compile(rf"{NONE}|\d[\d:,.-]*")


def with_steps(words: Sequence[str], is_ours: Callable[[Sequence[str]], bool]) -> list[str]:
    """Give each bare `--profile` of ours its default value.

    Args:
        is_ours: whether an option of ours may stand after these words.
    """
    found: list[str] = []
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        bare = word == _OPTION and not _STEPS.fullmatch(following)
        found.append(f"{_OPTION}={DEFAULT}" if bare and is_ours(words[:at]) else word)
    return found
