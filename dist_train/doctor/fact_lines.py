"""Facts as lines of rank 0's output: every launcher brings that here, also where it shares no directory."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import BaseModel

from dist_train.doctor.facts import (
    AllReduceSpeed,
    Facts,
    JobFacts,
    LinkSpeed,
    NodeFacts,
    PeerFacts,
    SharedFileFacts,
)

MARK = "dist-train doctor fact: "
_KINDS: dict[str, type[BaseModel]] = {
    cls.__name__: cls for cls in (JobFacts, NodeFacts, PeerFacts, SharedFileFacts, LinkSpeed, AllReduceSpeed)
}
_FIELDS = {
    "NodeFacts": "nodes",
    "PeerFacts": "peers",
    "SharedFileFacts": "shared_files",
    "LinkSpeed": "links",
    "AllReduceSpeed": "all_reduces",
}


def fact_line(fact: BaseModel) -> str:
    """One fact as a line."""
    return f"{MARK}{json.dumps({type(fact).__name__: fact.model_dump(mode='json')})}"


def read_facts(lines: Iterable[str]) -> Facts | None:
    """The facts among lines of output, each once; None where not even the job's own are there.

    A line that was cut is left out: its node is then one that has said nothing.
    """
    found: dict[str, dict[str, BaseModel]] = {name: {} for name in _KINDS}
    for line in lines:
        _, mark, text = line.partition(MARK)
        if mark and (fact := _parse(text)) is not None:
            found[type(fact).__name__].setdefault(text, fact)
    jobs = list(found["JobFacts"].values())
    if not jobs:
        return None
    lists = {field: tuple(found[name].values()) for name, field in _FIELDS.items()}
    return Facts.model_validate({"job": jobs[-1], **lists})


def _parse(text: str) -> BaseModel | None:
    try:
        ((name, record),) = json.loads(text).items()
        return _KINDS[name].model_validate(record)
    except (ValueError, KeyError, AttributeError):
        return None
