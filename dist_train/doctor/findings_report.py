"""Findings as text and as a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dist_train.doctor.facts import Facts
from dist_train.doctor.finding import SEVERITIES, Finding
from dist_train.rundir.name_ranks import name_ranks

_GOOD_ROWS = 4


def report_record(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Both as JSON: `doctor --json`, and doctor/report.json of the run."""
    return {
        "would_launch": would_launch(findings),
        "counts": counts(findings),
        "findings": [finding.to_record() for finding in findings],
        "facts": facts.model_dump(mode="json"),
    }


def would_launch(findings: Sequence[Finding]) -> bool:
    """Whether nothing was found that would end or hang a launch."""
    return not any(finding.severity == "error" for finding in findings)


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings of each severity."""
    found = Counter(finding.severity for finding in findings)
    return {severity: found[severity] for severity in SEVERITIES}


def table_rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """Severity, check, nodes and value of each; of a good value that many nodes have their own of, one."""
    good = Counter(one.check for one in findings if one.severity == "ok")
    rows: list[tuple[str, str, str, str]] = []
    shown: set[str] = set()
    for one in findings:
        if one.severity != "ok" or good[one.check] <= _GOOD_ROWS:
            rows.append((one.severity, one.check, node_names(one.nodes), one.value))
        elif one.check not in shown:
            shown.add(one.check)
            more = f"{one.value}; {good[one.check] - 1} more such lines in --json"
            rows.append((one.severity, one.check, node_names(one.nodes), more))
    return rows


def explanations(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Title, cause and hint of each finding that needs an answer."""
    for one in findings:
        if one.severity in ("error", "warning"):
            where = f", {_nodes(one.nodes)}" if one.nodes else ""
            yield f"{one.severity}: {one.check}{where}: {one.value}", one.cause, one.hint


def node_names(nodes: Sequence[int]) -> str:
    """`0-3,7`; `-` where it is of no single node."""
    return name_ranks(nodes).partition(" ")[2] if nodes else "-"


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {node_names(nodes)}"
