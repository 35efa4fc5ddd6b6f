"""TensorBoard reads what the sink writes, also after restarts; a missing package is an early error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_train import registry
from dist_train.errors import ConfigError
from dist_train.observability import tensorboard
from dist_train.observability.sink import SinkContext
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.rundir.directory import RunDir


def record(step: int, kind: str = "train", **more: Any) -> dict[str, Any]:
    plain = {"step": step, "total_steps": 90, "epoch": 0, "samples": 8 * step, "loss": 1 / step, "lr": 0.1}
    return {"kind": kind, **plain, "metrics": {"accuracy": 0.75}, **more}


def write(run: RunDir, *records: dict[str, Any], close: bool = True) -> None:
    sinks = SinkFanout.open(["tensorboard"], SinkContext(run))
    for one in records:
        sinks.record(one)
    sinks.flush()
    if close:
        sinks.close()


def curves(run: RunDir) -> dict[str, list[tuple[int, float]]]:
    """Every curve, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run.tensorboard)).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_every_number_of_a_record_is_a_curve_by_kind(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(
        run,
        record(1, step_s=0.5, memory_rank=3, gradient_number=2.0, note="x"),
        record(2),
        record(2, kind="eval"),
    )
    found = curves(run)
    assert found["train/loss"] == [(1, 1.0), (2, 0.5)]
    assert found["train/accuracy"] == [(1, 0.75), (2, 0.75)]
    assert found["eval/loss"] == [(2, 0.5)]
    assert found["train/step_s"] == [(1, 0.5)]
    assert not {
        tag
        for tag in found
        if tag.endswith(("/step", "/total_steps", "/memory_rank", "/gradient_number", "/note"))
    }


def test_steps_that_a_restart_runs_again_are_there_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, record(10), record(20), record(30), record(33, kind="eval"), record(40), close=False)
    write(run, record(30, loss=7.0), record(33, kind="eval", loss=8.0), record(40, loss=9.0), record(50))
    found = curves(run)
    assert found["train/loss"] == [(10, 0.1), (20, 0.05), (30, 7.0), (40, 9.0), (50, 0.02)]
    assert found["eval/loss"] == [(33, 8.0)]


def test_a_reader_sees_each_record_at_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    sink = tensorboard.TensorBoardSink(SinkContext(run))
    sink.record(record(1))
    assert curves(run)["train/loss"] == [(1, 1.0)]
    sink.close()


def test_flush_s_keeps_records_back_until_it_is_over_or_a_flush(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), [100.0]
    options = tensorboard.TensorBoardOptions(flush_s=10)
    sink = tensorboard.TensorBoardSink(SinkContext(run), options, clock=lambda: now[0])
    sink.record(record(1))
    sink.record(record(2))
    assert [step for step, _ in curves(run)["train/loss"]] == [1]
    now[0] += 10.0
    sink.record(record(3))
    assert [step for step, _ in curves(run)["train/loss"]] == [1, 2, 3]
    sink.record(record(4))
    sink.flush()
    assert [step for step, _ in curves(run)["train/loss"]] == [1, 2, 3, 4]
    sink.close()


def test_a_run_without_a_directory_writes_nothing() -> None:
    sinks = SinkFanout.open(["tensorboard"], SinkContext())
    sinks.record(record(1))
    sinks.close()


def test_without_the_package_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(ConfigError, match="the sink tensorboard needs the package tensorboard") as caught:
        write(RunDir(tmp_path), record(1))
    assert "pip install 'dist-train[tensorboard]'" in str(caught.value)
    assert caught.value.exit_code == 78


def test_what_is_missing_is_read_from_the_file_and_nothing_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert registry.missing("sinks", "tensorboard") == {}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert registry.missing("sinks", "tensorboard") == tensorboard.REQUIRES
    assert registry.missing("sinks", "jsonl") == {}


def test_it_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from dist_train.observability.sink import SinkContext
from dist_train.observability.tensorboard import TensorBoardSink
from dist_train.rundir import RunDir

sink = TensorBoardSink(SinkContext(RunDir(Path({str(tmp_path)!r}))))
sink.record({{"kind": "train", "step": 1, "loss": 1.0}})
sink.close()
print({{"torch", "tensorflow"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
