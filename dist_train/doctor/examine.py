"""All rules in order; what several nodes have alike is one finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dist_train.doctor.facts import Facts
from dist_train.doctor.finding import SEVERITIES, Finding
from dist_train.doctor.gpu_rules import gpu_findings
from dist_train.doctor.limit_rules import limit_findings
from dist_train.doctor.network_rules import network_findings
from dist_train.doctor.speed_rules import speed_findings
from dist_train.doctor.storage_rules import storage_findings
from dist_train.doctor.version_rules import version_findings
from dist_train.errors import ExitCode

_RULES = (
    version_findings,
    gpu_findings,
    network_findings,
    speed_findings,
    storage_findings,
    limit_findings,
)


def examine(facts: Facts) -> list[Finding]:
    """Every finding, the worst first: a pure function of the facts."""
    # The job's own error last: what the others found may be its cause.
    found = [*(finding for rule in _RULES for finding in rule(facts)), *_end(facts)]
    return sorted(merge(found), key=lambda finding: SEVERITIES.index(finding.severity))


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all nodes of which the same is true, in the order of the first."""
    nodes: dict[Finding, dict[int, None]] = {}
    for finding in findings:
        nodes.setdefault(replace(finding, nodes=()), {}).update(dict.fromkeys(finding.nodes))
    return [replace(finding, nodes=tuple(sorted(of))) for finding, of in nodes.items()]


def _end(facts: Facts) -> Iterator[Finding]:
    """How the job failed; its error as our errors are written: what, then its cause and its hint."""
    if facts.end is None:
        return
    what, *rest = facts.end.message.splitlines() or [_unrecorded(facts.end.code)]
    parts = {key.strip(): text.strip() for key, mark, text in (line.partition(":") for line in rest) if mark}
    why = f"the doctor's own job ended with exit code {facts.end.code}, as a launch would"
    cause = f"{parts['cause']} ({why})" if "cause" in parts else why
    nodes = () if facts.end.node is None else (facts.end.node,)
    hint = facts.end.hint or parts.get("hint", "dist-train logs @last")
    yield Finding("error", "job", what, nodes, cause, hint)


def _unrecorded(code: int) -> str:
    """What is known of a job whose agent ended before it could write a record (a limit, a full disk)."""
    name = "".join(f" ({one.name})" for one in ExitCode if one == code and code >= ExitCode.NOT_FOUND)
    return f"it ended with exit code {code}{name}; its own output says why"
