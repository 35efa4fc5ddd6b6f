"""Records go to every sink; one that fails is reported once and stops no training."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dist_train import registry
from dist_train.errors import ConfigError
from dist_train.observability.console import ConsoleSink
from dist_train.observability.sink import Record, SinkContext, SinkOptions
from dist_train.observability.sink_fanout import SinkFanout, open_sink
from dist_train.rundir.directory import RunDir
from dist_train.testing import check_sink


def record(step: int, kind: str = "train", **more: Any) -> dict[str, Any]:
    plain = {
        "step": step,
        "epoch": 0,
        "samples": 8 * step,
        "loss": 0.5,
        "lr": 0.1,
        "metrics": {"accuracy": 0.75},
    }
    return {"kind": kind, **plain, **more}


class Broken:
    def record(self, record: Record) -> None:
        raise OSError("no space left")

    def flush(self) -> None: ...

    def close(self) -> None:
        raise OSError("no space left")


class Kept:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = 0

    def record(self, record: Record) -> None:
        self.steps.append(record["step"])

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


def test_a_broken_sink_is_reported_once_and_the_others_get_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    sinks = SinkFanout({"broken": Broken(), "kept": kept})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            sinks.record(record(step))
        sinks.close()
        sinks.close()
    assert (kept.steps, kept.closed) == ([1, 2, 3], 1)
    assert len(caplog.messages) == 1
    assert "broken" in caplog.messages[0]
    assert "no space left" in caplog.messages[0]


class Leaves(Broken):
    def record(self, record: Record) -> None:
        raise SystemExit(3)


def test_a_sink_that_calls_sys_exit_stops_no_training(caplog: pytest.LogCaptureFixture) -> None:
    SinkFanout({"leaves": Leaves()}).record(record(1))
    assert "the sink leaves failed to record" in caplog.text


def test_sinks_are_found_by_file_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    assert {"jsonl", "console"} <= set(registry.names("sinks"))
    with pytest.raises(ConfigError, match="jsonk"):
        SinkFanout.open(["jsonk"], SinkContext())


class ThresholdOptions(SinkOptions):
    """Of somebody else's sink."""

    above: float = 0.0


class Threshold:
    """Somebody else's sink: keeps losses above a threshold."""

    Options = ThresholdOptions

    def __init__(self, context: SinkContext, options: ThresholdOptions) -> None:
        self._above = options.above
        self.losses: list[float] = []

    def record(self, record: Record) -> None:
        if record.get("loss", 0.0) > self._above:
            self.losses.append(record["loss"])

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_a_sink_of_another_distribution_takes_options(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sink(Threshold)
    ours = registry.load

    def load(kind: str, name: str) -> object:
        return Threshold if (kind, name) == ("sinks", "threshold") else ours(kind, name)

    monkeypatch.setattr(registry, "load", load)
    sink = open_sink("threshold", SinkContext(), {"above": 0.5})
    assert isinstance(sink, Threshold)
    sink.record(record(1, loss=0.25))
    sink.record(record(2, loss=0.75))
    assert sink.losses == [0.75]
    with pytest.raises(ConfigError, match="the sink threshold has no option 'abov'") as caught:
        open_sink("threshold", SinkContext(), {"abov": 0.5})
    assert "did you mean `above`?" in str(caught.value)
    with pytest.raises(ConfigError, match="the sink jsonl has no option 'path'"):
        open_sink("jsonl", SinkContext(), {"path": "x"})


def test_what_a_callback_logs_is_in_the_file_and_not_on_the_console(tmp_path: Path) -> None:
    out = io.StringIO()
    run_dir = RunDir(tmp_path)
    sinks = SinkFanout.open(["jsonl", "console"], SinkContext(run_dir, stream=out))
    sinks.record({"kind": "callback", "step": 1, "epoch": 0, "distance": 0.5})
    sinks.close()
    assert out.getvalue() == ""
    assert json.loads(run_dir.metrics.read_text())["distance"] == 0.5


def test_jsonl_appends_whole_lines_also_after_a_torn_one(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    sinks = SinkFanout.open(["jsonl"], SinkContext(run_dir))
    sinks.record(record(1))
    with run_dir.metrics.open("a") as file:
        file.write('{"kind": "tra')  # a writer was killed here
    sinks.record(record(2))
    sinks.flush()
    sinks.close()
    lines = run_dir.metrics.read_text().splitlines()
    assert json.loads(lines[0])["loss"] == 0.5
    assert [json.loads(lines[i])["step"] for i in (0, 2)] == [1, 2]
    assert {"schema_version", "time"} <= set(json.loads(lines[2]))


def test_console_writes_plain_lines_every_few_seconds_and_each_evaluation() -> None:
    now = [100.0]
    out = io.StringIO()
    console = ConsoleSink(SinkContext(total_steps=46, epochs=2, stream=out), clock=lambda: now[0])
    for step in range(10, 15):
        console.record(record(step, samples_per_s=5120.4, data_wait=0.031))
        now[0] += 2.0
    console.record(record(23, kind="eval"))
    console.record(record(24))
    console.record(record(25))
    console.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == (
        "epoch 1/2  step 10/46  loss 0.5000  accuracy 0.7500  lr 0.1  5120 samples/s  data wait 3 %"
    )
    assert [line.split("step ")[1].split("/")[0] for line in lines] == ["10", "13", "23", "25"]
    assert lines[2] == "evaluation after epoch 1/2  step 23/46  loss 0.5000  accuracy 0.7500"
    assert "\x1b" not in out.getvalue()
