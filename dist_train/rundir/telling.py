"""A record of metrics.jsonl in words: the same on rank 0's console, in the live view and in `status`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from dist_train.rundir.amounts import clock, size

Record = Mapping[str, Any]

# What the trainer says beside loss and metrics: each has words of its own, so it is no further figure.
_TOLD_APART = {
    *("schema_version", "time", "kind", "attempt"),
    *("step", "total_steps", "epoch", "epochs", "samples", "loss", "metrics", "lr"),
    *("samples_per_s", "data_wait", "eta_s", "step_s", "data_s", "compute_s"),
    *("step_s_mean", "data_s_mean", "compute_s_mean"),
    *("memory_bytes", "memory_rank", "slowest_rank", "slowest_s", "others_s"),
}

# A line comes within moments of its record.
_HEADS = 1000


def train_line(record: Record) -> str:
    """`epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  data wait 3 %  …`."""
    return "  ".join([*head(record), *speed(record), *data_wait(record), *columns(record), *standing(record)])


def eval_line(record: Record) -> str:
    """`evaluation after epoch 2/10  step 46/230  loss 0.2011  accuracy 0.9416`."""
    return "evaluation after " + "  ".join(head(record))


def line_head(record: Record) -> str:
    """What the line of a record begins with: place and figures."""
    return eval_line(record) if record.get("kind") == "eval" else "  ".join(head(record))


def head(record: Record) -> list[str]:
    """Place, then loss and metrics."""
    return [*place(record), *figures(record)]


def place(record: Record) -> list[str]:
    """`epoch 2/10` and `step 40/230`, as far as the record tells.

    The trainer counts epochs from 0 and people from 1; a script's own epoch is told as it was logged.
    """
    parts = []
    if isinstance(epoch := record.get("epoch"), int):
        parts.append(f"epoch {epoch + ('samples' in record)}" + _of(record.get("epochs")))
    if (step := record.get("step")) is not None:
        parts.append(f"step {step}" + _of(record.get("total_steps")))
    return parts


def figures(record: Record) -> list[str]:
    """`loss 0.3120`, each metric, and every number that a script of the user's own logged."""
    return [f"{name} {_figure(value)}" for name, value in measured(record).items()]


def measured(record: Record) -> dict[str, float]:
    """Name and value of loss, metrics and a script's own numbers."""
    metrics = record.get("metrics")
    named = {
        **({"loss": record["loss"]} if "loss" in record else {}),
        **(metrics if isinstance(metrics, Mapping) else {}),
        **{name: value for name, value in record.items() if name not in _TOLD_APART},
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
    """`data wait 3 %`: the share of the time that rank 0 waited for data."""
    share = record.get("data_wait")
    return [f"data wait {100 * share:.0f} %"] if _is_number(share) else []


def columns(record: Record) -> list[str]:
    """`Time 0.123 (0.120)`, `Data …`, `Compute …`: seconds per step, lately and (on average)."""
    parts = []
    for title, name in (("Time", "step_s"), ("Data", "data_s"), ("Compute", "compute_s")):
        if _is_number(value := record.get(name)):
            mean = record.get(f"{name}_mean")
            parts.append(f"{title} {value:.3f}" + (f" ({mean:.3f})" if _is_number(mean) else ""))
    return parts


def standing(record: Record) -> list[str]:
    """`ETA 12:30`, `memory 512.0 MiB (rank 2)`, and the slowest rank where the others wait for it."""
    eta = record.get("eta_s")
    told = slowest(record) if is_held_up(record) else []
    return [*([f"ETA {clock(eta)}"] if _is_number(eta) else []), *memory(record), *told]


def memory(record: Record) -> list[str]:
    """Of the rank that holds most."""
    if not _is_number(held := record.get("memory_bytes")):
        return []
    rank = record.get("memory_rank")
    return [f"memory {size(held)}" + (f" (rank {rank})" if rank is not None else "")]


def slowest(record: Record) -> list[str]:
    """The rank whose own work of a step took longest, and what the others' took."""
    if record.get("slowest_rank") is None:
        return []
    text = f"slowest rank {record['slowest_rank']}"
    if _is_number(own := record.get("slowest_s")) and _is_number(others := record.get("others_s")):
        text += f" ({own:.3f} s, others {others:.3f})"
    return [text]


def is_held_up(record: Record) -> bool:
    """Whether the slowest rank's own work is ahead of the others' by a tenth of the step or more."""
    own, others, step = (record.get(name) for name in ("slowest_s", "others_s", "step_s"))
    if not (_is_number(own) and _is_number(others) and _is_number(step)):
        return False
    return own - others >= 0.1 * step > 0


class OwnLines:
    """Tells rank 0's progress lines, which repeat a record, from everything else that it writes."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._heads: deque[str] = deque(maxlen=_HEADS)
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Know these too; the oldest of many are forgotten."""
        self._heads.extend(line_head(record) for record in records)

    def has(self, line: str) -> bool:
        """Whether the line begins with place and figures of one of the records, word for word."""
        return any(head and (line == head or line.startswith(head + "  ")) for head in self._heads)


def _of(whole: Any) -> str:
    return f"/{whole}" if isinstance(whole, int) and whole > 0 else ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    # A learning rate or a small loss of somebody's own must not be told as 0.0000.
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4f}"
