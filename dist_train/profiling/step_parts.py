"""What the time of profiled steps went to: each moment of a step belongs to exactly one part.

On a GPU: compute is where a kernel, copy or fill runs that is no collective; exposed communication where only
collectives run; data wait where the device is idle and the program waits for its loader; stall is the rest.

On CPU: data wait comes first, for a loader without workers computes its batches in the program itself; then
compute (an operator of torch runs), then communication that no operator overlaps with; stall is the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.profiling.intervals import Interval, minus, total, union, within

Event = Mapping[str, Any]

STEP_MARK = "ProfilerStep#"
# torch's DataLoader marks its waits itself; a loop with a source of its own can write
# `with torch.profiler.record_function("data wait"):`.
_DATA_WAIT = ("enumerate(DataLoader)#", "data wait")
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_HOST = ("cpu_op", "user_annotation")
_COLLECTIVE_KERNELS = ("nccl", "rccl")
_COLLECTIVES = ("gloo:", "mpi:", "ucc:")
# What begins a collective; on CPU the program waits there, or for the collective itself.
_CALLS = ("c10d::", "record_param_comms", "nccl:")
# Holds other operators, and what is between them.
_HOLDERS = ("autograd::engine::",)


@dataclass(frozen=True)
class StepParts:
    """Seconds of `steps` profiled steps; the four parts add up to `whole_s`.

    Attributes:
        communication_s: of collectives while nothing computes: exposed.
        hidden_communication_s: of collectives while something computes; part of `compute_s`.
        on_device: whether compute is a GPU's.
    """

    steps: int
    whole_s: float
    compute_s: float
    communication_s: float
    data_wait_s: float
    stall_s: float
    hidden_communication_s: float
    on_device: bool

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.whole_s / self.steps if self.steps else 0.0


def step_intervals(events: Iterable[Event], complete: int | None = None) -> list[Interval]:
    """The interval of each step, in order; of these the first `complete`, for the last may be cut off."""
    marks = sorted(
        _interval(event)
        for event in events
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith(STEP_MARK)
    )
    return marks if complete is None else marks[:complete]


def step_parts(events: Sequence[Event], steps: Sequence[Interval]) -> StepParts:
    """Divide the time of these steps; the events are those of a Chrome trace that torch has written."""
    window = union(steps)
    bounds = (window[0][0], window[-1][1]) if window else (0.0, 0.0)
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    on_device = any(event.get("cat") in _DEVICE for event in spans)
    is_compute = _computes_on_device if on_device else _computes_on_host
    is_collective = _communicates if on_device else _communicates_on_host

    def of(kind: Any) -> list[Interval]:
        return within(union(_interval(event) for event in spans if kind(event)), bounds)

    data, compute, collective = of(_waits_for_data), of(is_compute), of(is_collective)
    if on_device:
        communication = minus(collective, compute)
        data = minus(data, union([*compute, *collective]))
    else:
        compute = minus(compute, data)
        communication = minus(minus(collective, compute), data)
    parts = [total(_inside(part, window)) for part in (compute, communication, data)]
    hidden = total(_inside(collective, window)) - parts[1]
    whole = total(window)
    to_s = 1e-6  # traces are in microseconds
    return StepParts(
        steps=len(steps),
        whole_s=whole * to_s,
        compute_s=parts[0] * to_s,
        communication_s=parts[1] * to_s,
        data_wait_s=parts[2] * to_s,
        stall_s=max(0.0, whole - sum(parts)) * to_s,
        hidden_communication_s=max(0.0, hidden) * to_s,
        on_device=on_device,
    )


def _inside(intervals: Sequence[Interval], window: Sequence[Interval]) -> list[Interval]:
    return [piece for bounds in window for piece in within(intervals, bounds)]


def _interval(event: Event) -> Interval:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def _name(event: Event) -> str:
    return str(event.get("name"))


def _waits_for_data(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and _name(event).startswith(_DATA_WAIT)


def _communicates(event: Event) -> bool:
    if event.get("cat") in _DEVICE:
        return _name(event).lower().startswith(_COLLECTIVE_KERNELS)
    return event.get("cat") in _HOST and _name(event).startswith(_COLLECTIVES)


def _communicates_on_host(event: Event) -> bool:
    return event.get("cat") in _HOST and _name(event).startswith((*_COLLECTIVES, *_CALLS))


def _computes_on_device(event: Event) -> bool:
    return event.get("cat") in _DEVICE and not _communicates(event)


def _computes_on_host(event: Event) -> bool:
    return event.get("cat") == "cpu_op" and not _name(event).startswith((*_COLLECTIVES, *_CALLS, *_HOLDERS))
