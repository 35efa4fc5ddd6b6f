"""What to launch instead, where Kueue's message says that its queue will never admit the job."""

from __future__ import annotations

import re
from collections.abc import Iterable

from launchers._kubernetes.manifest.option_values import DISK, NONE

# Kueue's text for a resource without any quota; the condition's reason depends on Kueue's version.
_UNCOVERED = re.compile(r"resource (\S+) unavailable in ClusterQueue")
_NO_FLAVOR = "(NoMatchingFlavor)"


def queue_hint(notes: Iterable[str]) -> str:
    """The hint for the first of Kueue's messages that has one; empty where waiting can help."""
    return next((hint for note in notes if (hint := _hint(note))), "")


def _hint(note: str) -> str:
    if (found := _UNCOVERED.search(note)) is None:
        fits = "no flavor of the queue fits the pods' --node-selector and --toleration"
        return fits if _NO_FLAVOR in note else ""
    if found[1] == DISK:
        return f"launch it again with --resource {DISK}={NONE}"
    return (
        f"the queue has no quota for {found[1]} at all: launch it without, or ask the queue's administrators"
    )
