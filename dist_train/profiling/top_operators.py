"""The operators, or on a GPU the kernels, that took most of the time of the profiled steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.profiling.intervals import Interval
from dist_train.profiling.step_parts import Event

# Of autograd's own: they hold the operators of a backward pass, each of which has its line.
_HOLDERS = ("autograd::engine::",)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Operator:
    """One name in the trace.

    Attributes:
        seconds: over all steps; of an operator without those that it calls.
        calls: over all steps.
    """

    name: str
    seconds: float
    calls: int


def top_operators(events: Iterable[Event], steps: Sequence[Interval], count: int) -> list[Operator]:
    """The names with the most time within the steps, longest first; on the device if anything runs there."""
    if not steps:
        return []
    begin, end = steps[0][0], steps[-1][1]
    spans = [
        event for event in events if event.get("ph") == "X" and "dur" in event and begin <= event["ts"] < end
    ]
    chosen = [event for event in spans if event.get("cat") in _DEVICE]
    timed = (
        [(event, float(event["dur"])) for event in chosen]
        if chosen
        else _own_time(event for event in spans if event.get("cat") == "cpu_op")
    )
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event, own in timed:
        if str(event["name"]).startswith(_HOLDERS):
            continue
        seconds[str(event["name"])] += own * 1e-6
        calls[str(event["name"])] += 1
    names = sorted(seconds, key=lambda name: (-seconds[name], name))
    return [Operator(name, seconds[name], calls[name]) for name in names[:count]]


def _own_time(events: Iterable[Event]) -> list[tuple[Event, float]]:
    """Each event with its duration less that of the events that it holds, on its own thread."""
    found: list[list[Any]] = []
    open_: dict[Any, list[list[Any]]] = defaultdict(list)
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        stack = open_[event.get("tid")]
        while stack and event["ts"] >= stack[-1][0]["ts"] + stack[-1][0]["dur"]:
            stack.pop()
        if stack:
            stack[-1][1] -= event["dur"]
        entry = [event, float(event["dur"])]
        stack.append(entry)
        found.append(entry)
    return [(event, max(0.0, own)) for event, own in found]
