"""Whether two texts of a state say the same: seconds, counts and names of fresh pods do not count."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# The end of a pod's name: its index, and the random part that Kubernetes makes of these characters.
_FRESH_NAME = re.compile(r"-(?:\d+-)?[bcdfghjklmnpqrstvwxz2456789]{5}\b")
# A number that is no part of a name (`gpu-2`), with its unit. An exit code is a reason of its own.
_NUMBER = re.compile(r"(?<!exit code )(?<![\w.-])\d+(?:\.\d+)?(?:[KMGTP]i?|m)?\b")
_DURATION = re.compile(r"(?<![\w.-])(?:\d+(?:\.\d+)?(?:h|m|s|ms))+\b")


def reason_kind(text: str) -> str:
    """The text without what changes while the reason stays."""
    steady = _FRESH_NAME.sub("-*", _UID.sub("*", text))
    return _NUMBER.sub("#", _DURATION.sub("#", steady))


def reason_kinds(texts: Iterable[str]) -> tuple[str, ...]:
    """The kinds of several texts."""
    return tuple(reason_kind(text) for text in texts)
