"""What one rank's trace says: where the time of its steps went, its operations, its utilisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.profiling.device_peaks import Utilisation, utilisation
from dist_train.profiling.flop_count import FastFp32, count_flops
from dist_train.profiling.step_parts import StepParts, step_intervals, step_parts
from dist_train.profiling.top_operators import Operator, top_operators
from dist_train.profiling.trace_file import FACTS

_OPERATORS = 10


@dataclass(frozen=True)
class TraceSummary:
    """One rank in the profiled steps.

    Attributes:
        first: the first of the steps, counted from the attempt's start.
        device: as torch calls it.
        flops: operations of all steps, by precision.
    """

    rank: int
    first: int
    device: str
    parts: StepParts
    flops: Mapping[str, int]
    mfu: Utilisation
    top: tuple[Operator, ...]

    @property
    def steps(self) -> int:
        """How many steps the trace has."""
        return self.parts.steps

    @property
    def flops_per_step(self) -> float:
        """Operations of one step, on this rank."""
        return sum(self.flops.values()) / self.steps if self.steps else 0.0

    def to_record(self) -> dict[str, Any]:
        """As JSON: seconds are of all steps together."""
        parts = self.parts
        return {
            "rank": self.rank,
            "first_step": self.first,
            "steps": self.steps,
            "device": self.device,
            "seconds": parts.whole_s,
            "step_s": parts.step_s,
            "compute_s": parts.compute_s,
            "communication_s": parts.communication_s,
            "hidden_communication_s": parts.hidden_communication_s,
            "data_wait_s": parts.data_wait_s,
            "stall_s": parts.stall_s,
            "flops_per_step": self.flops_per_step,
            "flops": dict(self.flops),
            "mfu": self.mfu.fraction,
            "mfu_unknown": self.mfu.why_not,
            "operators": [{"name": one.name, "seconds": one.seconds, "calls": one.calls} for one in self.top],
        }


def summarise(trace: Mapping[str, Any], rank: int) -> TraceSummary:
    """Summarise a trace that `launch --profile` has written."""
    facts = trace.get(FACTS)
    if not isinstance(facts, Mapping):
        facts = {}
    events = trace["traceEvents"]
    steps = step_intervals(events, facts.get("complete"))
    parts = step_parts(events, steps)
    fast = FastFp32(bool(facts.get("tf32_matmul")), bool(facts.get("tf32_convolution")))
    flops = count_flops(events, steps, fast)
    device = str(facts.get("device", "this device"))
    return TraceSummary(
        rank=rank,
        first=int(facts.get("first", 1)),
        device=device,
        parts=parts,
        flops=flops,
        mfu=utilisation(device, flops, parts.whole_s),
        top=tuple(top_operators(events, steps, _OPERATORS)),
    )
