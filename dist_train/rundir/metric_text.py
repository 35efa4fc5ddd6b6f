"""A record of metrics.jsonl as a line of text, for rank 0's console, the live view and `status` alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from dist_train.rundir.display_number import display_number
from dist_train.rundir.format_amounts import clock, size

Record = Mapping[str, Any]

# Fields of the trainer's own, formatted below: every other number in a record is a metric of the user's.
_KNOWN_FIELDS = {
    *("schema_version", "time", "kind", "attempt"),
    *("step", "total_steps", "epoch", "epochs", "samples", "loss", "metrics", "lr"),
    *("samples_per_s", "data_wait", "eta_s", "step_s", "data_s", "compute_s"),
    *("step_s_mean", "data_s_mean", "compute_s_mean"),
    *("memory_bytes", "memory_rank", "slowest_rank", "slowest_s", "others_s"),
    *("gradient_number", "rank_losses"),
}

# Enough records: a console line follows its record within a second.
_HEADS = 1000


def train_line(record: Record) -> str:
    """`epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  data wait 3 %  …`."""
    parts = (head, speed, data_wait, columns, eta_and_resources)
    return "  ".join(text for part in parts for text in part(record))


def eval_line(record: Record) -> str:
    """`evaluation after epoch 2/10  step 46/230  loss 0.2011  accuracy 0.9416`."""
    return "evaluation after " + "  ".join(head(record))


def line_head(record: Record) -> str:
    """The beginning of a record's line: its place and figures."""
    return eval_line(record) if record.get("kind") == "eval" else "  ".join(head(record))


def head(record: Record) -> list[str]:
    """The place, then loss and metrics."""
    return [*place(record), *figures(record)]


def place(record: Record) -> list[str]:
    """`epoch 2/10` and `step 40/230`, as far as recorded."""
    parts = []
    if (epoch := display_epoch(record)) is not None:
        parts.append(f"epoch {epoch}" + _of(record.get("epochs")))
    if (step := record.get("step")) is not None:
        parts.append(f"step {step}" + _of(record.get("total_steps")))
    return parts


def display_epoch(record: Record) -> int | None:
    """The trainer's epoch counts from 0 and is shown from 1; a script's own is shown as it was logged."""
    epoch = record.get("epoch")
    if not isinstance(epoch, int):
        return None
    return display_number(epoch) if "samples" in record else epoch


def figures(record: Record) -> list[str]:
    """`loss 0.3120`, each metric, and every number that the user's script logged."""
    return [f"{name} {_figure(value)}" for name, value in measured(record).items()]


def measured(record: Record) -> dict[str, float]:
    """Name and value of loss, metrics and the numbers that the user's script logged."""
    metrics = record.get("metrics")
    named = {
        **({"loss": record["loss"]} if "loss" in record else {}),
        **(metrics if isinstance(metrics, Mapping) else {}),
        **{name: value for name, value in record.items() if name not in _KNOWN_FIELDS},
    }
    return {name: value for name, value in named.items() if _is_number(value)}


def speed(record: Record) -> list[str]:
    """`lr 0.003`, `5120 samples/s`."""
    parts = []
    if _is_number(rate := record.get("lr")):
        parts.append(f"lr {rate:.3g}")
    if _is_number(samples := record.get("samples_per_s")) and samples:
        parts.append(f"{samples:.0f} samples/s")
    return parts


def data_wait(record: Record) -> list[str]:
    """`data wait 3 %`: the fraction of the time that rank 0 waited for data."""
    fraction = record.get("data_wait")
    return [f"data wait {100 * fraction:.0f} %"] if _is_number(fraction) else []


def columns(record: Record) -> list[str]:
    """`Time 0.123 (0.120)`, `Data …`, `Compute …`: seconds per step, lately and (on average)."""
    parts = []
    for title, name in (("Time", "step_s"), ("Data", "data_s"), ("Compute", "compute_s")):
        if _is_number(value := record.get(name)):
            mean = record.get(f"{name}_mean")
            parts.append(f"{title} {value:.3f}" + (f" ({mean:.3f})" if _is_number(mean) else ""))
    return parts


def eta_and_resources(record: Record) -> list[str]:
    """`ETA 12:30`, `memory 512.0 MiB (rank 2)`, and the slowest rank if the others wait for it."""
    eta = record.get("eta_s")
    straggler = slowest(record) if is_held_up(record) else []
    return [*([f"ETA {clock(eta)}"] if _is_number(eta) else []), *memory(record), *straggler]


def memory(record: Record) -> list[str]:
    """The memory of the rank that uses most."""
    if not _is_number(held := record.get("memory_bytes")):
        return []
    rank = record.get("memory_rank")
    return [f"memory {size(held)}" + (f" (rank {rank})" if rank is not None else "")]


def slowest(record: Record) -> list[str]:
    """The rank whose own work in a step took longest, with its time and the others'."""
    if record.get("slowest_rank") is None:
        return []
    text = f"slowest rank {record['slowest_rank']}"
    if _is_number(own := record.get("slowest_s")) and _is_number(others := record.get("others_s")):
        text += f" ({own:.3f} s, others {others:.3f})"
    return [text]


def is_held_up(record: Record) -> bool:
    """Whether the slowest rank's own work exceeds the others' by a tenth of the step or more."""
    own, others, step = (record.get(name) for name in ("slowest_s", "others_s", "step_s"))
    if not (_is_number(own) and _is_number(others) and _is_number(step)):
        return False
    return own - others >= 0.1 * step > 0


class ProgressLines:
    """Recognise rank 0's progress lines, which repeat a record, among its other output."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._heads: deque[str] = deque(maxlen=_HEADS)
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Add records; the oldest are dropped."""
        self._heads.extend(line_head(record) for record in records)

    def has(self, line: str) -> bool:
        """Whether the line begins exactly with the place and figures of one of the records."""
        return any(head and (line == head or line.startswith(head + "  ")) for head in self._heads)


def _of(whole: Any) -> str:
    return f"/{whole}" if isinstance(whole, int) and whole > 0 else ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    # A small value, such as a learning rate that a script logged, must not be shown as 0.0000.
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4f}"
