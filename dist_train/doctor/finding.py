"""One conclusion about a node, or about the job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "ok", "skipped"]
# Worst first.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "skipped", "ok")


@dataclass(frozen=True)
class Finding:
    """What was found, on which nodes, and what to do about it.

    Args:
        severity: error: a launch would not work; warning: it would, and slower or at a risk.
        check: the name of what was looked at.
        value: what was found.
        nodes: empty: of the whole job.
        cause: why it matters; empty where nothing is wrong.
        hint: what to do.
    """

    severity: Severity
    check: str
    value: str
    nodes: tuple[int, ...] = ()
    cause: str = ""
    hint: str = ""

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "nodes": list(self.nodes)}
