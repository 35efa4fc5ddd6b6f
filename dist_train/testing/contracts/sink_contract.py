"""What every sink must keep: it takes every kind of record, is durable after a flush, and closes."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dist_train.testing.contracts.rules import check_options

if TYPE_CHECKING:
    from dist_train.observability.sink import SinkFactory


def check_sink(factory: SinkFactory) -> None:
    """Raise AssertionError for the first rule of sinks that this one breaks.

    Its Options, where it declares some, are a frozen pydantic model of defaults that refuses unknown names;
    it opens with a run directory and without one, takes records of a training step, of an evaluation and of a
    callback, keeps them unchanged, flushes at any time, and closes. Opening it loads no torch.

    Args:
        factory: the constant SINK of its file.
    """
    from dist_train.observability.sink import Sink, SinkContext
    from dist_train.rundir.directory import RunDir

    options: tuple[Any, ...] = ()
    if hasattr(factory, "Options"):
        model = check_options(factory)
        options = (model(),)
        try:
            model(no_such_option=1)
        except ValidationError:
            pass
        else:
            raise AssertionError(f"{model.__name__} takes a name that it does not have")
    had_torch = "torch" in sys.modules
    with tempfile.TemporaryDirectory(prefix="dist-train-sink-") as folder:
        for run_dir in (None, RunDir(Path(folder))):
            sink: Sink = factory(SinkContext(run_dir, 90, 3, io.StringIO()), *options)
            for method in ("record", "flush", "close"):
                assert callable(getattr(sink, method, None)), f"the sink has no method {method}"
            sink.flush()
            for record in records():
                before = repr(record)
                sink.record(record)
                assert repr(record) == before, f"the sink has changed the record {before}"
            sink.flush()
            sink.close()
    assert had_torch or "torch" not in sys.modules, "the sink loads torch; rank 0 may not need it"


def records() -> list[dict[str, Any]]:
    """One of each kind, as the trainer makes them; a nan is what a diverged training has."""
    place = {"step": 30, "total_steps": 90, "epoch": 0, "epochs": 3, "samples": 240}
    figures = {"loss": 0.5, "lr": 0.1, "metrics": {"accuracy": 0.75}}
    speed = {"samples_per_s": 5120.0, "data_wait": 0.03, "step_s": 0.02, "data_s": 0.001, "compute_s": 0.019}
    whole = {"step_s_mean": 0.02, "data_s_mean": 0.001, "compute_s_mean": 0.019, "eta_s": None}
    ranks = {"memory_bytes": 2**20, "memory_rank": 1, "slowest_rank": 1, "slowest_s": 0.02, "others_s": 0.01}
    return [
        {"kind": "train", **place, **figures, **speed, **whole, **ranks},
        {"kind": "eval", **place, **figures, "loss": float("nan"), "metrics": {}},
        {"kind": "callback", "step": 30, "epoch": 0, "distance": 0.25, "note": "text"},
    ]
